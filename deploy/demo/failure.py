"""How the demo ends when it cannot continue."""

EX_OK = 0
EX_WRONG = 1
EX_USAGE = 64
EX_UNAVAILABLE = 69
EX_OSERR = 71


class DemoFailed(Exception):
    """Ends the demo with `exit_status`; the message says what, where and what to do."""

    def __init__(self, exit_status, message):
        super().__init__(message)
        self.exit_status = exit_status
