//! Tests of the preloaded library, by C programs and Debian's own.

mod alone;
mod connections;
mod extended_pair;
mod extended_verbs;
mod interface;
mod programs;
mod segment;
mod sysfs;
