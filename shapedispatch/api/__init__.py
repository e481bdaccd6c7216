"""What a user writes and holds: the decorator, the checks of what it is given, the objects that it returns; what
becomes of a call is decided elsewhere, in `hit` and `dispatch`."""
