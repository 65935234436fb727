//! Network namespaces for tests of ports: each belongs to a thread and goes away with it, also on
//! panic. And the record of tests that skip themselves.

mod skip;

pub use skip::{ENV_SKIPS, record, skip, test_name};

use std::io;
use std::process::Command;

/// Gives the calling thread a namespace of its own, where the kernel sends no IPv6 frames of its
/// own.
///
/// # Errors
/// The operating system's answer: without CAP_SYS_ADMIN there is none.
pub fn enter() -> io::Result<()> {
    // SAFETY: takes a number; only this thread is affected.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // A kernel without IPv6 has no such file, and sends none either.
    std::fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1").ok();
    Ok(())
}

/// Runs `test` in a namespace of its own. Skipped, loudly, where that is not possible.
///
/// # Panics
/// When `test` does.
pub fn in_namespace(test: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name(test_name());
        let done = thread.spawn_scoped(scope, || {
            let has_ip =
                || Command::new("ip").arg("link").output().is_ok_and(|out| out.status.success());
            if enter().is_err() || !has_ip() {
                return skip("this test needs root and `ip`");
            }
            test();
        });
        let done = done.expect("a thread");
        done.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

/// Runs lines of commands in the namespace of the calling thread.
///
/// # Panics
/// When one fails.
pub fn sh(lines: &str) {
    let output = Command::new("sh").args(["-e", "-c", lines]).output().expect("a shell");
    assert!(output.status.success(), "{lines}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Makes a veth pair `ea`, `eb`, up, with an MTU in bytes and so many queues at each end.
///
/// # Panics
/// As [`sh`].
pub fn veth(mtu: u32, queues: u32) {
    let end = |name| format!("{name} mtu {mtu} numrxqueues {queues} numtxqueues {queues}");
    sh(&format!("ip link add {} type veth peer name {}", end("ea"), end("eb")));
    sh("ip link set ea up; ip link set eb up");
}
