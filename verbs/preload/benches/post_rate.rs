//! Small WRITEs per second, by the way they are posted: a wall-clock measurement of two processes
//! back to back, meaningful as ratios between its lines. `cargo bench -p longhaul-preload`.

#[path = "../tests/all/alone.rs"]
mod alone;
#[path = "../tests/all/extended_pair/mod.rs"]
mod extended_pair;

fn main() {
    // Ignores cargo's arguments, which are for other kinds of benches.
    print!("{}", extended_pair::run("rate", "rc"));
}
