//! Status codes of completions.

use std::fmt;

/// Status field of a completion, without the phase tag: code, type, and "do not retry".
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Status(u16);

const DO_NOT_RETRY: u16 = 1 << 14;
/// Status code and status code type.
const CODE: u16 = 0x7ff;

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $text:literal;)*) => {
        impl Status {
            $($(#[$doc])* #[doc = $text] pub const $name: Status = Status($code);)*

            /// Text of the code, if it is known.
            #[must_use]
            pub const fn text(self) -> Option<&'static str> {
                match self.code() {
                    $($code => Some($text),)*
                    _ => None,
                }
            }
        }
    };
}

statuses! {
    SUCCESS = 0x000, "success";
    INVALID_OPCODE = 0x001, "invalid command opcode";
    INVALID_FIELD = 0x002, "invalid field in command";
    ID_CONFLICT = 0x003, "command ID conflict";
    DATA_TRANSFER_ERROR = 0x004, "data transfer error";
    INTERNAL_ERROR = 0x006, "internal error";
    INVALID_NAMESPACE = 0x00b, "invalid namespace or format";
    SEQUENCE_ERROR = 0x00c, "command sequence error";
    INVALID_DATA_LENGTH = 0x00f, "data SGL length invalid";
    INVALID_SGL_TYPE = 0x011, "SGL descriptor type invalid";
    INVALID_SGL_OFFSET = 0x016, "SGL offset invalid";
    LBA_OUT_OF_RANGE = 0x080, "LBA out of range";
    CAPACITY_EXCEEDED = 0x081, "capacity exceeded";
    INVALID_QUEUE_ID = 0x101, "invalid queue identifier";
    EVENT_LIMIT_EXCEEDED = 0x105, "asynchronous event request limit exceeded";
    INVALID_LOG_PAGE = 0x109, "invalid log page";
    FEATURE_NOT_CHANGEABLE = 0x10e, "feature not changeable";
    CONNECT_INCOMPATIBLE_FORMAT = 0x180, "connect: incompatible format";
    CONTROLLER_BUSY = 0x181, "connect: controller busy";
    CONNECT_INVALID_PARAMETERS = 0x182, "connect: invalid parameters";
    CONNECT_INVALID_HOST = 0x184, "connect: invalid host";
    WRITE_FAULT = 0x280, "write fault";
    READ_ERROR = 0x281, "unrecovered read error";
    COMPARE_FAILURE = 0x285, "compare failure";
}

impl Status {
    /// From the last two bytes of a completion.
    #[must_use]
    pub const fn from_field(field: u16) -> Self {
        Status(field >> 1)
    }

    /// The last two bytes of a completion; the phase tag is 0 on fabrics.
    #[must_use]
    pub const fn field(self) -> u16 {
        self.0 << 1
    }

    /// Status code type (bits 10 to 8) and status code (bits 7 to 0).
    #[must_use]
    pub const fn code(self) -> u16 {
        self.0 & CODE
    }

    /// The same, with the advice that the same command will fail again.
    #[must_use]
    pub const fn permanent(self) -> Self {
        Status(self.0 | DO_NOT_RETRY)
    }

    /// True if the same command will fail again.
    #[must_use]
    pub const fn is_permanent(self) -> bool {
        self.0 & DO_NOT_RETRY != 0
    }

    /// True if the command succeeded.
    #[must_use]
    pub const fn is_success(self) -> bool {
        self.code() == 0
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.text() {
            Some(text) => write!(f, "{text} ({:#05x})", self.code()),
            None => write!(f, "status {:#05x}", self.code()),
        }
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)?;
        if self.is_permanent() { f.write_str(", permanent") } else { Ok(()) }
    }
}
