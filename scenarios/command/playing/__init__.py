"""`ringtwin run` and `ringtwin replay`: plays, one after the other or several at once."""
