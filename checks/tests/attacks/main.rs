//! Attacks on two whole boxes, in virtual time, with keys and without.
//!
//! An attacker stands in the middle of the WAN. He can send; or read as well; or read and drop; or
//! read, drop and write. Each test ends with nothing delivered wrongly and nothing acknowledged
//! falsely, as the hosts' own oracle sees it, with memory within its bounds, and with a counter
//! that names the attack. Where boxes without keys can do no more than RoCE itself, the test runs
//! plain RoCE beside them: boxes are no worse. `SECURITY.md` lists what each test shows.

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
