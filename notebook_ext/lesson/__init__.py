"""Building blocks of lessons: predictions, exercises, tables, puzzles, editions."""

from engine.records.counts import counts
from notebook_ext.lesson.predictions import LessonMagics, Prediction, predict, race

__all__ = ["LessonMagics", "Prediction", "counts", "predict", "race"]
