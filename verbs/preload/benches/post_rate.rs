//! Small WRITEs per second by the ways to post them: a wall-clock measurement of two processes back
//! to back, to be read as ratios between its lines. `cargo bench -p longhaul-preload`.

#[path = "../tests/all/alone.rs"]
mod alone;
#[path = "../tests/all/extended_pair/mod.rs"]
mod extended_pair;

fn main() {
    // What cargo passes is meant for other kinds of benches.
    print!("{}", extended_pair::run("rate", "rc"));
}
