//! Tests of the connection manager.

mod bounds;
mod interleavings;
mod linux;
mod pair;
mod path_mtu;
mod scale;
mod sidr_scripts;
mod wire_scripts;
