//! A shell on another lab host by ssh, through the fibre.

use longhaul_checks::{LabHosts, Program, Ready, require};
use longhaul_namespace::skip;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(240);
const SSHD: &str = "/usr/sbin/sshd";
/// Passes the device of the daemon's host on to sessions.
const START: &str = "device=$(env | grep -E '^(LONGHAUL_|LD_PRELOAD=)' | tr '\\n' ' ')
exec /usr/sbin/sshd -D -e -f /dev/null -h $PWD/host -o PidFile=none -o StrictModes=no -o UsePAM=no \
    -o AuthorizedKeysFile=$PWD/user.pub -o \"SetEnv=$device\"";

#[test]
fn reaches_the_other_host_and_its_device() {
    if !Path::new(SSHD).is_file() {
        return skip("sshd is not installed: apt-get install openssh-server");
    }
    require("ssh", "openssh-client");
    require("ibv_devinfo", "ibverbs-utils");
    let Some(hosts) = LabHosts::up("--distance 100km") else { return };
    let lab = hosts.lab();
    let dir = lab.runtime().path();
    // sshd separates privileges there, and its package creates it at boot.
    if fs::create_dir_all("/run/sshd").is_err() {
        return skip("sshd needs root for /run/sshd");
    }
    for key in ["host", "user"] {
        let mut generate = Command::new("ssh-keygen");
        generate.args(["-q", "-t", "ed25519", "-N", "", "-f", key]).current_dir(dir);
        Program::start(&mut generate).succeed(LIMIT);
    }
    let mut sshd = lab.command("b", "sh -c");
    let _sshd = lab.wait_for(Program::start(sshd.arg(START).current_dir(dir)), Ready::Tcp(22));
    let ssh = |address: &str, command: &str| {
        let options = "ssh -n -F none -i user -o StrictHostKeyChecking=no \
             -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR";
        let mut ssh = lab.command("a", &format!("{options} {address}"));
        Program::start(ssh.arg(command).current_dir(dir)).succeed(LIMIT)
    };
    assert_eq!(ssh("10.77.0.2", "uname -n").stdout.trim_end(), "b");
    let before = lab.status()["hosts"][1]["counters"]["kernel_tx_frames"].as_u64();
    let there = ssh("b", "ibv_devinfo -v -d longhaul0; head -c 1000000 /dev/zero");
    assert!(there.stdout.contains("::ffff:10.77.0.2"), "{}", there.stdout.replace('\0', ""));
    assert_eq!(there.stdout.matches('\0').count(), 1_000_000);
    let after = lab.status()["hosts"][1]["counters"]["kernel_tx_frames"].as_u64();
    assert!(after > before.map(|frames| frames + 100), "{before:?} and {after:?} frames");
}
