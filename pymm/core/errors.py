"""Exceptions of pymm besides Python's own."""


class Error(Exception):
    """What all of pymm's own exceptions are; each is one of Python's, too."""


class NoDevice(Error, RuntimeError):
    """No device that can do what was asked; the message names what to do about it."""


class CompileFailed(Error, RuntimeError):
    """The compiler refused a source; the message holds the compiler's words. `outcome` is what the
    trial of a tuner comes to.
    """

    outcome = "compile_failed"


class CompileTimeout(CompileFailed):
    """The compiler was stopped because it took too long; another time it may not."""

    outcome = "compile_timeout"


class CompilerKilled(CompileFailed):
    """The compiling process was killed, by whomever; another time it may not be."""

    outcome = "crashed"


class Busy(Error, RuntimeError):
    """Another process of this user has taken what this one needs: a device, a tuner's journal."""


class StoreError(Error, ValueError):
    """A file of tuned configurations that cannot be used; the message names file, line and what to
    do. The file is left as it is.
    """


class NoMPI(Error, ImportError):
    """mpi4py or an MPI library is missing, or another MPI's launcher started the processes."""


class NoEnergy(Error, RuntimeError):
    """The energy of a device cannot be read, or not finely enough; the message says what lacks."""


class LaunchFailed(Error, RuntimeError):
    """The device refused or broke off a launch; the message names configuration and resources.

    `sticky` is True when the device's context is lost and only a new process can go on.
    """

    def __init__(self, message: str, sticky: bool = False) -> None:
        super().__init__(message)
        self.sticky = sticky

    def __reduce__(self):
        return type(self), (str(self), self.sticky)
