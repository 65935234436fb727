//! Tests of UC: wire scripts, channels that lose and reorder.

mod channel;
mod requester;
mod responder;
mod script;
