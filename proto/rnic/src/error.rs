//! Errors of control verbs and of posting.

use crate::QpState;
use std::net::IpAddr;
use thiserror::Error;

/// Errno-like class of a [`VerbsError`] or [`PostError`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ErrorClass {
    /// EINVAL: a value or handle that makes no sense.
    Invalid,
    /// ENOMEM: a queue or table is full.
    NoMemory,
    /// EBUSY: something still uses the object.
    Busy,
    /// EINVAL in verbs: not in this state.
    BadState,
    /// EOPNOTSUPP: valid, but not implemented by this device.
    NotSupported,
    /// ETIMEDOUT: somebody who was asked has not answered.
    TimedOut,
}

/// Why a control operation was refused. Nothing has changed then.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum VerbsError {
    /// The handle names nothing.
    #[error("no such {0}")]
    NoSuch(&'static str),
    /// A parameter is outside its bounds.
    #[error("{what} is {value}, allowed is {min} to {max}")]
    OutOfBounds {
        /// The parameter.
        what: &'static str,
        /// As given.
        value: u64,
        /// Smallest value.
        min: u64,
        /// Largest value.
        max: u64,
    },
    /// A parameter makes no sense for another reason.
    #[error("{0}")]
    Invalid(&'static str),
    /// The transition needs an attribute that was not given.
    #[error("transition from {from:?} to {to:?} needs {attribute}")]
    MissingAttribute {
        /// State before.
        from: QpState,
        /// State asked for.
        to: QpState,
        /// Name of the missing attribute.
        attribute: &'static str,
    },
    /// The transition does not take an attribute that was given.
    #[error("transition from {from:?} to {to:?} does not take {attribute}")]
    SurplusAttribute {
        /// State before.
        from: QpState,
        /// State asked for.
        to: QpState,
        /// Name of the attribute.
        attribute: &'static str,
    },
    /// The transition does not exist.
    #[error("transition from {from:?} to {to:?} is not allowed")]
    BadTransition {
        /// State before.
        from: QpState,
        /// State asked for.
        to: QpState,
    },
    /// A table is full.
    #[error("limit of {limit} {what} reached")]
    Limit {
        /// What there are too many of.
        what: &'static str,
        /// The limit.
        limit: u64,
    },
    /// The object is in use.
    #[error("{what} is used by {users} others")]
    Busy {
        /// The object.
        what: &'static str,
        /// How many use it.
        users: u32,
    },
    /// The peer's Ethernet address is not known, see [`crate::Rnic::resolve`].
    #[error("the Ethernet address of {ip} is missing: {reason}")]
    Unresolved {
        /// The peer.
        ip: IpAddr,
        /// Why it is not.
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

/// Why a work request was not queued.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum PostError {
    /// No such QP, or shared receive queue.
    #[error("no such queue")]
    NoSuchQp,
    /// The QP takes its receives from a shared queue.
    #[error("the QP has a shared receive queue")]
    HasSharedQueue,
    /// The QP is in a state that takes no such request.
    #[error("QP is in state {0:?}")]
    BadState(QpState),
    /// The queue is full.
    #[error("work queue of {depth} is full")]
    QueueFull {
        /// Its depth.
        depth: u32,
    },
    /// More segments than the QP was created for.
    #[error("{given} segments, at most {max}")]
    TooManySegments {
        /// As posted.
        given: usize,
        /// As created.
        max: u32,
    },
    /// More inline data than the QP was created for.
    #[error("{given} bytes inline, at most {max}")]
    InlineTooLong {
        /// As posted.
        given: u64,
        /// As created.
        max: u32,
    },
    /// Longer than a message can be.
    #[error("message of {given} bytes, at most {max}")]
    MessageTooLong {
        /// As posted.
        given: u64,
        /// The limit.
        max: u64,
    },
    /// A combination that makes no sense (inline READ, immediate and invalidate, READ with no
    /// outstanding READs allowed).
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
