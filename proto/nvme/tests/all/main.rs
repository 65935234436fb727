//! Tests of host and target against each other, and of each against a hostile peer.

mod association;
mod hostile_host;
mod hostile_target;
mod linux_host;
mod world;
