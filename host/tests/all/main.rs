//! Tests of the loop that drives nodes, in real time.

mod driver;
mod parker;
mod quiet_ports;
mod turn;
