//! Boxes between network namespaces; the tests take turns, because each loads the machine.

mod boxes;
mod carrier;
mod cores;
mod ece;
mod fail_open;
mod failures;
mod faults;
mod floods;
mod operation;
mod replace;
mod segments;
mod xdp;
