"""Graph breaks: reasons, examples and the bytecode that resumes after one."""
