"""Building blocks of lessons: predictions, exercises, races, tables, puzzles, editions."""

from engine.records.counts import counts
from notebook_ext.lesson.predictions import LessonMagics, Prediction, predict
from notebook_ext.lesson.races import count_operators, race, show_times

__all__ = ["LessonMagics", "Prediction", "count_operators", "counts", "predict", "race", "show_times"]
