//! Boxes between network namespaces; the tests take turns, because each loads the machine.

mod boxes;
mod cores;
mod faults;
mod floods;
mod operation;
mod replace;
mod segments;
mod xdp;
