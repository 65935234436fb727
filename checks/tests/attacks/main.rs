//! Attacks on two whole boxes, in virtual time, with keys and without.
//!
//! An attacker in the middle of the WAN can send; or also read; or read and drop; or read, drop and
//! write. Each test ends without wrong deliveries and false acknowledgements, according to the
//! hosts' oracle, with bounded memory, and with a counter that names the attack. Where boxes
//! without keys can do no more than RoCE itself, the test runs plain RoCE beside them, to show that
//! boxes are no worse. `SECURITY.md` lists the property that each test shows.

mod attacker;
#[path = "../../../proto/accel/tests/all/fleet/mod.rs"]
mod fleet;
mod forge;
mod slow;
mod stage;
mod stranger;

mod downgrade;
mod floods;
mod forged;
mod replay;
mod theft;
