//! The protocol of two boxes between two hosts as a small model, for a model checker to try every
//! order of events.
//!
//! [`pair`] is requester, near box, far box and responder with what lies between them: loss,
//! repetition, reordering, timers and crashes. [`session`] is the WAN transport beneath the two
//! boxes: how a session begins, what it carries, and what becomes of both when a box restarts. Each
//! rule names the function of the code that it mirrors; docs/semantics.md says what is modelled and
//! what is not.
//!
//! A rule can be told to [slip](pair::Slip): the tests show that the checker finds each of these
//! mistakes.
#![forbid(unsafe_code)]

mod graph;
pub mod pair;
pub mod session;

pub use graph::{ENDS, Explored, explore};
