//! A guest with the kernel's rxe to try things with: each line of standard input runs in it as a shell command, and its
//! output comes back. `cargo xtask interop shell` starts it.

use longhaul_checks::interop::{End, Family, RxePeer, address};
use std::io::{BufRead, Write, stdin, stdout};
use std::process::ExitCode;
use std::time::Duration;

/// For one command.
const LIMIT: Duration = Duration::from_secs(3600);

fn main() -> ExitCode {
    eprintln!("booting ...");
    let peer = match RxePeer::boot("s") {
        Ok(peer) => peer,
        Err(reason) => {
            eprintln!("no guest: {reason}");
            return ExitCode::FAILURE;
        }
    };
    let (v4, v6) = (address(End::Rxe, Family::V4), address(End::Rxe, Family::V6));
    let (own4, own6) = (address(End::Ours, Family::V4), address(End::Ours, Family::V6));
    eprintln!(
        "The guest has rxe0 with {v4} (GID index 1) and {v6} (GID index 2); this machine has {own4} and {own6} on {}.\n\
         Type commands for the guest, one per line; ones that end in & go on in the background. Ctrl-D ends it.\n\
         In another terminal: longhaul exec --udp={own4} -- ib_write_bw -d longhaul0 {v4}",
        peer.tap().name()
    );
    let mut jobs = Vec::new();
    eprint!("rxe# ");
    for line in stdin().lock().lines().map_while(Result::ok) {
        match line.trim().strip_suffix('&') {
            Some(line) => jobs.push(peer.guest().spawn(line, LIMIT)),
            None => {
                let done = peer.guest().run(&line, LIMIT);
                print!("{}{}", done.stdout, done.stderr);
                if let Some(code) = done.status.code().filter(|code| *code != 0) {
                    println!("exit code {code}");
                }
            }
        }
        // A closed terminal ends the loop by itself.
        let _ = stdout().flush();
        eprint!("rxe# ");
    }
    eprintln!();
    ExitCode::SUCCESS
}
