//! Private data of the connection manager's messages.
//!
//! Source: NVM Express RDMA Transport Specification 1.0; compared with Linux
//! `include/linux/nvme-rdma.h`.

use crate::DYNAMIC_CONTROLLER;
use crate::fields::{put, u16_at};
use std::fmt;
use thiserror::Error;

/// Length of a request's private data.
pub const REQUEST_LEN: usize = 32;
/// Length of a reply's private data.
pub const ACCEPT_LEN: usize = 32;

/// Private data of a REQ: a host requests a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueRequest {
    /// Queue; 0 is the admin queue.
    pub queue: u16,
    /// Receives that the host posts, for responses.
    pub receives: u16,
    /// Commands that the host sends at most before it gets responses.
    pub sends: u16,
    /// Controller of an I/O queue; hosts may leave it 0.
    pub controller: u16,
}

/// Why private data is no request for a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("{0}")]
pub struct RequestError(pub RefusalReason);

impl QueueRequest {
    /// Parses private data.
    ///
    /// # Errors
    /// With the reason to put into the rejection.
    pub fn read(data: &[u8]) -> Result<Self, RequestError> {
        // Trailing zeros are not transmitted by every peer; the first five fields must be there.
        if data.len() < 10 {
            return Err(RequestError(RefusalReason::Length));
        }
        let field = |at| u16_at(data, at);
        if field(0) != 0 {
            return Err(RequestError(RefusalReason::Format));
        }
        let (receives, sends) = (field(4), field(6));
        match (receives, sends) {
            (0, _) => Err(RequestError(RefusalReason::Receives)),
            (_, 0) => Err(RequestError(RefusalReason::Sends)),
            _ => Ok(QueueRequest { queue: field(2), receives, sends, controller: field(8) }),
        }
    }

    /// Writes private data.
    #[must_use]
    pub fn write(&self) -> [u8; REQUEST_LEN] {
        let mut data = [0; REQUEST_LEN];
        let controller = if self.queue == 0 { 0 } else { self.controller & DYNAMIC_CONTROLLER };
        for (at, value) in [(2, self.queue), (4, self.receives), (6, self.sends), (8, controller)] {
            put(&mut data, at, &value.to_le_bytes());
        }
        data
    }
}

/// Private data of a REP: the controller accepts a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Accept {
    /// Receives that the controller posts, for commands.
    pub receives: u16,
}

impl Accept {
    /// Parses private data; `None` if it has another format.
    #[must_use]
    pub fn read(data: &[u8]) -> Option<Self> {
        (data.len() >= 4 && u16_at(data, 0) == 0).then(|| Accept { receives: u16_at(data, 2) })
    }

    /// Writes private data.
    #[must_use]
    pub fn write(&self) -> [u8; ACCEPT_LEN] {
        let mut data = [0; ACCEPT_LEN];
        put(&mut data, 2, &self.receives.to_le_bytes());
        data
    }
}

/// Why a controller refuses a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RefusalReason {
    /// Private data of another length.
    Length,
    /// Another record format.
    Format,
    /// No such queue.
    Queue,
    /// No valid number of commands.
    Sends,
    /// No valid number of receives.
    Receives,
    /// No memory, or too many queues.
    Resources,
    /// A reason that this implementation does not use.
    Other(u16),
}

impl RefusalReason {
    const fn code(self) -> u16 {
        match self {
            RefusalReason::Length => 1,
            RefusalReason::Format => 2,
            RefusalReason::Queue => 3,
            RefusalReason::Sends => 4,
            RefusalReason::Receives => 5,
            RefusalReason::Resources => 6,
            RefusalReason::Other(code) => code,
        }
    }

    const fn from_code(code: u16) -> Self {
        match code {
            1 => RefusalReason::Length,
            2 => RefusalReason::Format,
            3 => RefusalReason::Queue,
            4 => RefusalReason::Sends,
            5 => RefusalReason::Receives,
            6 => RefusalReason::Resources,
            code => RefusalReason::Other(code),
        }
    }
}

impl fmt::Display for RefusalReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RefusalReason::Length => f.write_str("invalid length of the private data"),
            RefusalReason::Format => f.write_str("invalid record format"),
            RefusalReason::Queue => f.write_str("invalid queue identifier"),
            RefusalReason::Sends => f.write_str("invalid host submission queue size"),
            RefusalReason::Receives => f.write_str("invalid host receive queue size"),
            RefusalReason::Resources => f.write_str("the target is out of resources"),
            RefusalReason::Other(code) => write!(f, "reason {code}"),
        }
    }
}

/// Private data of a REJ: the controller refuses a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refusal(pub RefusalReason);

impl Refusal {
    /// Parses private data; `None` if it has another format, or is none of a controller.
    #[must_use]
    pub fn read(data: &[u8]) -> Option<Self> {
        let is_ours = data.len() >= 4 && u16_at(data, 0) == 0 && u16_at(data, 2) != 0;
        is_ours.then(|| Refusal(RefusalReason::from_code(u16_at(data, 2))))
    }

    /// Writes private data.
    #[must_use]
    pub fn write(&self) -> [u8; 4] {
        let mut data = [0; 4];
        put(&mut data, 2, &self.0.code().to_le_bytes());
        data
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_read_as_written() {
        let request = QueueRequest { queue: 3, receives: 128, sends: 127, controller: 9 };
        assert_eq!(QueueRequest::read(&request.write()), Ok(request));
        assert_eq!(request.write()[..10], [0, 0, 3, 0, 128, 0, 127, 0, 9, 0]);
        let refused = |data: &[u8]| QueueRequest::read(data).unwrap_err().0;
        assert_eq!(refused(&request.write()[..9]), RefusalReason::Length);
        assert_eq!(refused(&[1; 32]), RefusalReason::Format);
        assert_eq!(refused(&[0; 32]), RefusalReason::Receives);
        let none = QueueRequest { sends: 0, ..request };
        assert_eq!(refused(&none.write()), RefusalReason::Sends);
    }

    #[test]
    fn replies_are_read_as_written() {
        assert_eq!(Accept::read(&Accept { receives: 5 }.write()), Some(Accept { receives: 5 }));
        for code in 1..10 {
            let refusal = Refusal(RefusalReason::from_code(code));
            assert_eq!(Refusal::read(&refusal.write()), Some(refusal));
        }
        assert_eq!(Refusal::read(&[0; 148]), None);
    }
}
