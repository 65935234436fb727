//! Tests of the device below `/sys`: a program that makes every call, common tools, and the
//! programs that the loader gives no library.

use crate::alone::alone;
use crate::interface::compile;
use longhaul_namespace::{skip, test_name};
use longhaul_rdma::{Attach, attach, sysfs};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::MutexGuard;

const IP: &str = "127.0.66.2";
/// The user without privileges.
const NOBODY: u32 = 65534;

/// A directory that everybody may write; deleted when dropped. One test has one at a time, because
/// their devices have one address.
struct Dir {
    path: PathBuf,
    _alone: MutexGuard<'static, ()>,
}

impl Dir {
    fn new() -> Self {
        let alone = alone();
        let name = test_name().replace("::", "-");
        let path = std::env::temp_dir().join(format!("longhaul-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o777)).unwrap();
        Dir { path, _alone: alone }
    }

    fn tree(&self) -> PathBuf {
        self.path.join("tree")
    }

    /// A program on the device, as a user without privileges.
    fn command(&self, program: impl AsRef<Path>) -> Command {
        let library = std::env::current_exe().unwrap().with_file_name("liblonghaul_preload.so");
        let mut command = Command::new(program.as_ref());
        command
            .env("LD_PRELOAD", library)
            .env(attach::ENV_UDP_PORT, "4791")
            .env(attach::ENV_IP, IP)
            .env(attach::ENV_COUNTERS, self.tree())
            .current_dir(&self.path);
        if is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        command
    }

    fn run(&self, line: &str) -> String {
        let output = self.command("/bin/bash").args(["-e", "-o", "pipefail", "-c", line]).output();
        succeeded(line, &output.unwrap())
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

fn succeeded(what: &str, output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{what}: {}\n{text}{errors}", output.status);
    text
}

fn is_root() -> bool {
    // SAFETY: takes no arguments.
    unsafe { libc::geteuid() == 0 }
}

/// The library may lie below a directory that only its owner may enter.
fn others_may_load_the_library() -> bool {
    let program = std::env::current_exe().unwrap();
    let enterable =
        |dir: &Path| fs::metadata(dir).is_ok_and(|found| found.permissions().mode() & 0o001 != 0);
    let can = !is_root() || program.ancestors().skip(1).all(enterable);
    if !can {
        skip("the library is in a directory that other users may not enter");
    }
    can
}

#[test]
fn every_call_finds_the_device() {
    if !others_may_load_the_library() {
        return;
    }
    let dir = Dir::new();
    let program = dir.path.join("sysfs");
    fs::copy(compile("sysfs", Some("-libverbs")), &program).unwrap();
    let output = dir.command(&program).arg(&dir.path).output().unwrap();
    let text = succeeded("sysfs", &output);
    assert!(text.ends_with("0 failures\n"), "{text}");
}

#[test]
fn tools_walk_and_read_all_of_it() {
    if !others_may_load_the_library() {
        return;
    }
    let dir = Dir::new();
    let class = "/sys/class/infiniband";
    assert_eq!(dir.run(&format!("ls {class}")), "longhaul0\n");
    assert_eq!(dir.run(&format!("cd {class}/longhaul0 && pwd -P")), {
        "/sys/devices/virtual/infiniband/longhaul0\n"
    });
    for resolve in [
        "realpath",
        "readlink -f",
        "python3 -c 'import os, sys; \
                     print(os.path.realpath(sys.argv[1]))'",
    ] {
        let found = dir.run(&format!("{resolve} {class}/longhaul0/ports/1"));
        assert_eq!(found, "/sys/devices/virtual/infiniband/longhaul0/ports/1\n", "{resolve}");
    }
    let listed = dir.run(&format!("ls -lR {class}/longhaul0/"));
    assert!(listed.contains("gid_attrs") && listed.contains("np_cnp_sent"), "{listed}");
    let by_find = dir.run(&format!("find {class}/longhaul0/ -type f | sort"));
    let by_python = dir.run(&format!(
        "python3 -c 'import os\nfor d, _, f in os.walk(\"{class}/longhaul0\"):\n \
         for n in f: print(d + \"/\" + n)' | sort"
    ));
    assert_eq!(by_find.replace("longhaul0//", "longhaul0/"), by_python);
    assert!(by_find.lines().count() > 40, "{by_find}");
    // Every file answers, with a line.
    let empty = dir.run(&format!(
        "find {class}/longhaul0/ -type f | while read f; do test \"$(cat $f)\" || echo $f; done"
    ));
    assert_eq!(empty, "");
    let gid = dir.run(&format!("cat {class}/longhaul0/ports/1/gids/*"));
    assert_eq!(gid, "0000:0000:0000:0000:0000:ffff:7f00:4202\n");
    assert_eq!(dir.run(&format!("cat {class}/longhaul0/ports/1/gid_attrs/ndevs/0")), "lo\n");
}

#[test]
fn tools_for_infiniband_describe_the_device() {
    if !others_may_load_the_library() {
        return;
    }
    let dir = Dir::new();
    for (program, expected) in [
        ("/usr/sbin/ibstat", "State: Active"),
        ("/usr/sbin/ibstatus", "Infiniband device 'longhaul0' port 1 status:"),
        ("/usr/bin/ibv_devinfo", "GID[  0]:\t\t::ffff:127.0.66.2, RoCE v2"),
    ] {
        assert!(
            Path::new(program).exists(),
            "{program} is missing: apt-get install \
                 infiniband-diags ibverbs-utils"
        );
        let option = if program.ends_with("devinfo") { " -v" } else { "" };
        let text = dir.run(&format!("{program}{option}"));
        assert!(text.contains(expected), "{program}: {text}");
    }
}

#[test]
fn a_process_without_a_device_sees_the_kernels() {
    let dir = Dir::new();
    let mut command = dir.command("/bin/ls");
    command.arg("/sys/class/infiniband").env_remove(attach::ENV_UDP_PORT);
    let ours = command.output().unwrap();
    let kernels = Command::new("/bin/ls").arg("/sys/class/infiniband").output().unwrap();
    assert_eq!((ours.stdout, ours.status), (kernels.stdout, kernels.status));
    assert!(!dir.tree().exists());
}

#[test]
fn a_directory_that_cannot_be_written_is_reported_once() {
    if !others_may_load_the_library() {
        return;
    }
    let dir = Dir::new();
    let mut command = dir.command("/bin/ls");
    command.args(["/sys/class/infiniband", "/sys/class/infiniband/longhaul0"]);
    let output = command.env(attach::ENV_COUNTERS, "/proc/longhaul").output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert_eq!(errors.matches("longhaul: no /sys/class/infiniband/longhaul0: ").count(), 1);
}

/// Runs `test` in a thread that has the tree mounted.
fn with_mounts(tree: &Path, test: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name(test_name());
        let tested = thread.spawn_scoped(scope, || match sysfs::mount_privately(tree) {
            Ok(()) => test(),
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                skip("no mount namespace of its own; run as root");
            }
            Err(error) => panic!("{error}"),
        });
        if let Err(panic) = tested.expect("a thread").join() {
            std::panic::resume_unwind(panic);
        }
    });
}

#[test]
fn static_programs_need_the_mount() {
    const BUSYBOX: &str = "/bin/busybox";
    if !others_may_load_the_library() {
        return;
    }
    assert!(Path::new(BUSYBOX).exists(), "apt-get install busybox-static");
    let dir = Dir::new();
    let attach = Attach::from_lookup(|name| match name {
        attach::ENV_UDP_PORT => Some("4791".to_owned()),
        attach::ENV_IP => Some(IP.to_owned()),
        _ => None,
    });
    sysfs::create(&dir.tree(), &attach.unwrap()).unwrap();
    let node_type = || {
        let mut command = dir.command(BUSYBOX);
        command.args(["cat", "/sys/class/infiniband/longhaul0/node_type"]).output().unwrap()
    };
    assert!(!node_type().status.success(), "the loader preloads nothing");
    with_mounts(&dir.tree(), || {
        assert_eq!(succeeded("mounted", &node_type()), "1: CA\n");
        let list = |path: &str| {
            let output = dir.command(BUSYBOX).args(["ls", path]).output().unwrap();
            succeeded(path, &output)
        };
        assert_eq!(list("/sys/class/infiniband"), "longhaul0\n");
        assert!(
            list("/sys/class").contains("infiniband\n") && list("/sys/class/net").contains("lo")
        );
        // The counters of a running device show through.
        let counter = "devices/virtual/infiniband/longhaul0/ports/1/hw_counters/np_cnp_sent";
        fs::write(dir.tree().join(counter), "7\n").unwrap();
        let shown = fs::read_to_string(Path::new("/sys").join(counter)).unwrap();
        assert_eq!(shown, "7\n");
        assert!(fs::write(Path::new("/sys").join(counter), "8\n").is_err(), "read-only");
    });
    assert!(!node_type().status.success(), "the mounts are the thread's");
}

#[test]
fn setuid_programs_see_no_device() {
    if !is_root() {
        return skip("a setuid program of another user needs root");
    }
    if !others_may_load_the_library() {
        return;
    }
    let dir = Dir::new();
    let cat = dir.path.join("cat");
    fs::copy("/bin/cat", &cat).unwrap();
    let read = || {
        let mut command = dir.command(&cat);
        command.arg("/sys/class/infiniband/longhaul0/node_type").output().unwrap()
    };
    assert_eq!(succeeded("cat", &read()), "1: CA\n");
    fs::set_permissions(&cat, Permissions::from_mode(0o4755)).unwrap();
    assert!(!read().status.success(), "the loader preloads nothing");
}
