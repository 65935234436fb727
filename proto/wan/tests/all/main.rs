//! Tests of the WAN transport: two boxes over fibres that do all that fibres do.

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
