//! The kernel's rxe, and boxes as services, in guests; tests take turns, each loads the machine.

mod chain;
mod faults;
mod kernel_guest;
mod rnic;
mod rnic_ports;
mod services;
mod storage;
mod storage_over_distance;
mod storage_peers;
