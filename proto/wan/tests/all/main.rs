//! Tests of the WAN transport: two boxes over fibres with every impairment.

mod dumbbell;
mod far;
mod hostile;
mod marks;
mod mtu;
mod net;
mod parity;
mod rate;
mod starved;
mod transport;
mod unreliable;
