//! The kernel's rxe in guests; the tests take turns, because each loads the machine.

mod chain;
mod faults;
mod kernel_guest;
mod rnic;
mod rnic_ports;
mod storage;
mod storage_over_distance;
mod storage_peers;
