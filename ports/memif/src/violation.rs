//! A violation of the protocol by the peer.

use std::fmt;

/// The violated rule and the offending value. It goes to the peer as the reason of a DISCONNECT,
/// and to the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Violation(pub(crate) String);

impl fmt::Display for Violation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

/// Creates a [`Violation`] from a format string.
macro_rules! violation {
    ($($text:tt)*) => { $crate::violation::Violation(format!($($text)*)) };
}
pub(crate) use violation;
