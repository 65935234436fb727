//! The protocol of two boxes between two hosts as a small model, for which a model checker explores
//! every order of events.
//!
//! [`pair`] models requester, near box, far box and responder, with the lines between them: loss,
//! duplication, reordering, timers and crashes. [`session`] models the WAN transport under the two
//! boxes: how a session begins, what it carries, and how it ends when a box restarts. The comment
//! of each rule names the function that it mirrors; docs/spec/completions.md lists what is modelled
//! and what is not.
//!
//! A rule can be made to [slip](pair::Slip): the tests show that the checker finds each of these
//! mistakes.
#![forbid(unsafe_code)]

mod graph;
pub mod pair;
pub mod session;

pub use graph::{ENDS, Explored, explore};
