"""AOT runtime wrappers; order: ``driver.OUTER_WRAPPERS``, ``driver.INNER_WRAPPERS``."""
