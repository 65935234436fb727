//! Tests of RC: wire scripts, captures of the Linux kernel, lossy channels.

mod captures;
mod hostile;
mod lengths;
mod lossy_pair;
mod requester;
mod responder;
mod script;
mod shared_receives;
