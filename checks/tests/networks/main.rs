//! Boxes between network namespaces; each test takes its turn, since each loads the machine.

mod boxes;
mod cores;
mod faults;
mod floods;
mod operation;
mod segments;
mod xdp;
