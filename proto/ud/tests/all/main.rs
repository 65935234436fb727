//! Tests of UD: wire scripts, captures of the Linux kernel, hostile bytes.

mod captures;
mod hostile;
mod requester;
mod responder;
mod script;
