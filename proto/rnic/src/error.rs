//! Errors of control verbs and of posting.

use crate::QpState;
use std::net::IpAddr;
use thiserror::Error;

/// Errno-like class of a [`VerbsError`] or [`PostError`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ErrorClass {
    /// EINVAL: an invalid value or handle.
    Invalid,
    /// ENOMEM: a queue or table is full.
    NoMemory,
    /// EBUSY: the object is in use.
    Busy,
    /// EINVAL in verbs: not in this state.
    BadState,
    /// EOPNOTSUPP: valid, but not implemented by this device.
    NotSupported,
    /// ETIMEDOUT: a peer has not answered.
    TimedOut,
}

/// Reason to refuse a control operation, which then has no effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum VerbsError {
    /// The handle refers to nothing.
    #[error("no such {0}")]
    NoSuch(&'static str),
    /// A parameter is outside its bounds.
    #[error("{what} is {value}, allowed is {min} to {max}")]
    OutOfBounds {
        /// The parameter.
        what: &'static str,
        /// The given value.
        value: u64,
        /// Minimum.
        min: u64,
        /// Maximum.
        max: u64,
    },
    /// A parameter is invalid for another reason.
    #[error("{0}")]
    Invalid(&'static str),
    /// The transition requires an attribute that is missing.
    #[error("transition from {from:?} to {to:?} needs {attribute}")]
    MissingAttribute {
        /// State before.
        from: QpState,
        /// Requested state.
        to: QpState,
        /// Name of the missing attribute.
        attribute: &'static str,
    },
    /// The transition does not permit an attribute.
    #[error("transition from {from:?} to {to:?} does not take {attribute}")]
    SurplusAttribute {
        /// State before.
        from: QpState,
        /// Requested state.
        to: QpState,
        /// Name of the attribute.
        attribute: &'static str,
    },
    /// The transition does not exist.
    #[error("transition from {from:?} to {to:?} is not allowed")]
    BadTransition {
        /// State before.
        from: QpState,
        /// Requested state.
        to: QpState,
    },
    /// A table is full.
    #[error("limit of {limit} {what} reached")]
    Limit {
        /// Objects of the table.
        what: &'static str,
        /// The limit.
        limit: u64,
    },
    /// The object is in use.
    #[error("{what} is used by {users} others")]
    Busy {
        /// The object.
        what: &'static str,
        /// Number of its users.
        users: u32,
    },
    /// The peer's Ethernet address is not resolved, see [`crate::Rnic::resolve`].
    #[error("the Ethernet address of {ip} is missing: {reason}")]
    Unresolved {
        /// The peer.
        ip: IpAddr,
        /// Reason.
        reason: &'static str,
    },
    /// Not implemented by this device.
    #[error("{0} is not supported")]
    NotSupported(&'static str),
}

impl VerbsError {
    /// The errno-like class.
    pub const fn class(&self) -> ErrorClass {
        match self {
            VerbsError::NoSuch(_)
            | VerbsError::OutOfBounds { .. }
            | VerbsError::Invalid(_)
            | VerbsError::MissingAttribute { .. }
            | VerbsError::SurplusAttribute { .. } => ErrorClass::Invalid,
            VerbsError::BadTransition { .. } => ErrorClass::BadState,
            VerbsError::Limit { .. } => ErrorClass::NoMemory,
            VerbsError::Busy { .. } => ErrorClass::Busy,
            VerbsError::Unresolved { .. } => ErrorClass::TimedOut,
            VerbsError::NotSupported(_) => ErrorClass::NotSupported,
        }
    }
}

/// Reason to refuse a work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum PostError {
    /// The QP or shared receive queue does not exist.
    #[error("no such queue")]
    NoSuchQp,
    /// The QP uses a shared receive queue.
    #[error("the QP has a shared receive queue")]
    HasSharedQueue,
    /// The QP's state does not permit the request.
    #[error("QP is in state {0:?}")]
    BadState(QpState),
    /// The queue is full.
    #[error("work queue of {depth} is full")]
    QueueFull {
        /// Its depth.
        depth: u32,
    },
    /// More segments than the queue was created for.
    #[error("{given} segments, at most {max}")]
    TooManySegments {
        /// Segments posted.
        given: usize,
        /// Maximum of the queue.
        max: u32,
    },
    /// More inline data than the QP was created for.
    #[error("{given} bytes inline, at most {max}")]
    InlineTooLong {
        /// Bytes posted.
        given: u64,
        /// Maximum of the QP.
        max: u32,
    },
    /// Longer than the maximum message.
    #[error("message of {given} bytes, at most {max}")]
    MessageTooLong {
        /// Bytes posted.
        given: u64,
        /// Maximum.
        max: u64,
    },
    /// An invalid combination (inline READ, immediate and invalidate, READ with no outstanding
    /// READs allowed).
    #[error("{0}")]
    Invalid(&'static str),
    /// Valid, but not implemented by this device.
    #[error("{0} is not supported")]
    NotSupported(&'static str),
}

impl PostError {
    /// The errno-like class.
    pub const fn class(&self) -> ErrorClass {
        match self {
            PostError::NoSuchQp
            | PostError::HasSharedQueue
            | PostError::TooManySegments { .. }
            | PostError::InlineTooLong { .. }
            | PostError::MessageTooLong { .. }
            | PostError::Invalid(_) => ErrorClass::Invalid,
            PostError::BadState(_) => ErrorClass::BadState,
            PostError::QueueFull { .. } => ErrorClass::NoMemory,
            PostError::NotSupported(_) => ErrorClass::NotSupported,
        }
    }
}
