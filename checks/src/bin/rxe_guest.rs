//! A guest with the kernel's rxe for experiments: each line of standard input runs in it as a shell
//! command, and its output is printed. `cargo xtask interop shell` starts it.

use longhaul_checks::interop::{Family, RxePeer};
use std::io::{BufRead, Write, stdin, stdout};
use std::process::ExitCode;
use std::time::Duration;

/// Time limit of a command.
const LIMIT: Duration = Duration::from_secs(3600);

fn main() -> ExitCode {
    eprintln!("booting ...");
    let peer = match RxePeer::boot("s", None) {
        Ok(peer) => peer,
        Err(reason) => {
            eprintln!("no guest: {reason}");
            return ExitCode::FAILURE;
        }
    };
    let [(v4, first), (v6, second)] =
        [Family::V4, Family::V6].map(|family| peer.rxe_address(family));
    let own = peer.own_address(Family::V4);
    eprintln!(
        "The guest has rxe0 with {v4} (GID index {first}) and {v6} (GID index {second}); this \
         machine is {own}.\n\
         Type commands for the guest, one per line; ones that end in & go on in the background. \
         Ctrl-D ends it.\n\
         In another terminal: longhaul exec --udp={own} -- ib_write_bw -d longhaul0 {v4}"
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
        // A closed terminal ends the loop.
        let _ = stdout().flush();
        eprint!("rxe# ");
    }
    eprintln!();
    ExitCode::SUCCESS
}
