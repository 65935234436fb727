"""Exceptions, whose texts are sentences for the user."""


class Error(Exception):
    """What the package raises."""


class SettingsError(Error, ValueError):
    """A setting, or the given memory, is invalid."""


class DeviceError(Error):
    """The RDMA device refused."""


class ResourceError(Error, OSError):
    """The operating system refused."""


class SessionError(Error, ConnectionError):
    """The receiver cannot be reached, refused the sender, or ended the session."""


class SendError(Error):
    """A message could not be sent, or the sender has finished."""


class ReleasedError(Error):
    """The chunk has been released."""


class Empty(Error):
    """No chunk came within the time limit."""


class Stopped(Error):
    """The receiver has stopped, and all its chunks have been taken."""
