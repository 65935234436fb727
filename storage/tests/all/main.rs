//! A target and hosts on two devices of one process, joined back to back.

mod hosts;
mod media;
mod world;
