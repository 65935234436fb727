//! User errors at the command line, and Ctrl-C.

use longhaul_checks::{
    Finished, Program, Ready, RuntimeDir, TestLab, free_tcp_port, members_of_group, require,
};
use std::thread::sleep;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(120);

/// Fails unless the program exited with `code` and printed one line, which contains all of `parts`,
/// on stderr alone.
fn assert_refused(finished: &Finished, code: i32, parts: &[&str]) {
    assert_eq!(finished.status.code(), Some(code), "{finished}");
    assert_eq!(finished.stdout, "", "{finished}");
    let line =
        finished.stderr.strip_suffix('\n').unwrap_or_else(|| panic!("no whole line: {finished}"));
    assert!(!line.contains('\n'), "more than one line: {finished}");
    assert!(line.starts_with("longhaul"), "{finished}");
    for part in parts {
        assert!(line.contains(part), "{part:?} is missing: {finished}");
    }
}

fn run(runtime: &RuntimeDir, arguments: &str) -> Finished {
    Program::start(&mut runtime.longhaul(arguments)).finish(LIMIT)
}

/// Polls `is_so` until it holds.
fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}: not within {LIMIT:?}");
        sleep(Duration::from_millis(10));
    }
}

mod bad_input {
    use super::*;

    #[test]
    fn a_value_that_makes_no_sense_says_what_would() {
        let runtime = RuntimeDir::new();
        for (arguments, parts) in [
            ("lab up --distance banana", ["'banana'", "--distance", "1000km"]),
            ("lab up --distance 1000", ["'1000'", "--distance", "km"]),
            ("lab up --distance=-5km", ["'-5km'", "--distance", "1000km"]),
            ("lab up --distance 90000km", ["'90000km'", "--distance", "longer than"]),
            ("lab up --rate fast", ["'fast'", "--rate", "10G"]),
            ("lab up --rate 0", ["'0'", "--rate", ""]),
            ("lab up --loss 2", ["'2'", "--loss", "1e-4"]),
            ("lab up --loss NaN", ["'NaN'", "--loss", "0 to 1"]),
            ("lab up --memory lots", ["'lots'", "--memory", "256M"]),
            ("lab up --memory 10K", ["'10K'", "--memory", "64 KiB"]),
            ("lab up --memory 100T", ["'100T'", "--memory", "1024 GiB"]),
            ("lab up --name ../../tmp", ["--name", "letters", ""]),
            ("lab up --hosts 27", ["'27'", "--hosts", "from 2 to 26"]),
            ("lab up --hosts 1", ["'1'", "--hosts", "from 2 to 26"]),
            ("lab up --ecn 4M:1M", ["'4M:1M'", "--ecn", "above Kmax"]),
            ("lab up --accelerate c", ["'c'", "--accelerate", "both"]),
            ("lab up --distanc 3km", ["--distanc", "similar", "--distance"]),
            ("exec --host 7 -- true", ["no host '7'", "a (10.77.0.1)", "b (10.77.0.2)"]),
            ("exec --lab l -- true", ["--host", "not provided", ""]),
            ("exec --host a", ["PROGRAM", "not provided", ""]),
            ("demo --seconds 0", ["--seconds", "from 1 to 60", ""]),
            ("laboratory", ["laboratory", "lab", ""]),
        ] {
            assert_refused(&run(&runtime, arguments), 2, &parts);
        }
        assert!(runtime.leftovers().is_empty(), "{:?}", runtime.leftovers());
    }

    #[test]
    fn a_file_of_settings_that_is_wrong_says_where_and_what_may_be_meant() {
        let runtime = RuntimeDir::new();
        let file = runtime.path().join("box.toml");
        let pair = "[[pair]]\nlan = 'eth1'\nwan = 'eth2'\n";
        for (text, line, told) in [
            (format!("{pair}distanse = '5km'"), 4, "did you mean 'distance'?"),
            (
                format!("{pair}rate = 5"),
                4,
                "rate: write the value in quotes; a data rate needs its unit",
            ),
            (format!("rate = '10G'\n{pair}"), 1, "'rate' belongs in [defaults] or [[pair]]"),
            (format!("{pair}[default]\nrate = '1G'"), 4, "did you mean 'defaults'?"),
            (format!("{pair}[[policy]]\nmod = 'off'"), 5, "did you mean 'mode'?"),
        ] {
            std::fs::write(&file, &text).unwrap();
            let refused = run(&runtime, &format!("accelerate --config {}", file.display()));
            assert_refused(&refused, 2, &[&format!("{}:{line}: ", file.display()), told]);
        }
    }

    #[test]
    fn a_distance_beyond_the_memory_says_how_much_is_needed() {
        let runtime = RuntimeDir::new();
        let refused = run(&runtime, "lab up --memory 10M --distance 1000km");
        assert_refused(
            &refused,
            1,
            &["5 ms", "10 MiB of memory", "give at least", "shorter distance"],
        );
        let refused = run(&runtime, "lab run --memory 10M --distance 1000km");
        assert_refused(&refused, 1, &["10 MiB of memory", "give at least"]);
        assert!(runtime.leftovers().is_empty(), "{:?}", runtime.leftovers());
    }

    #[test]
    fn the_memory_that_is_said_to_be_needed_is_enough() {
        let runtime = RuntimeDir::new();
        let refused = run(&runtime, "lab up --memory 10M --distance 1000km");
        let (_, rest) =
            refused.stderr.split_once("give at least ").unwrap_or_else(|| panic!("{refused}"));
        let mebibytes = rest.split(' ').next().unwrap_or_default();
        let up = run(&runtime, &format!("lab up --distance 1000km --memory {mebibytes}M"));
        assert!(up.status.success(), "{up}");
        assert!(run(&runtime, "lab down").status.success());
    }

    #[test]
    fn a_lab_that_is_not_up_says_how_to_start_it() {
        let runtime = RuntimeDir::new();
        for command in ["lab status", "lab status --json", "exec --host a -- true"] {
            let refused = run(&runtime, command);
            assert_refused(
                &refused,
                1,
                &["no lab called 'default' is up", "'longhaul lab up --distance"],
            );
        }
        let refused = run(&runtime, "lab status --name other");
        assert_refused(
            &refused,
            1,
            &["no lab called 'other' is up", "longhaul lab up --name other"],
        );
        let refused = run(&runtime, "lab down --name other");
        assert_refused(&refused, 1, &["no lab called 'other' is up; there is nothing to stop"]);
        assert!(runtime.leftovers().is_empty(), "{:?}", runtime.leftovers());
    }

    #[test]
    fn a_program_that_is_not_installed_says_which_package_has_it() {
        let lab = TestLab::up("");
        let run = |program: &str| {
            let mut command = lab.command("a", program);
            // An installation without these packages.
            command.env("PATH", "/nowhere");
            Program::start(&mut command).finish(LIMIT)
        };
        for (program, parts) in [
            ("ib_write_bw", ["'ib_write_bw'", "apt-get install perftest"]),
            ("ibv_devinfo", ["'ibv_devinfo'", "apt-get install ibverbs-utils"]),
            ("rping", ["'rping'", "apt-get install rdmacm-utils"]),
            ("nonesuch", ["'nonesuch'", "check the name"]),
            ("/nowhere/nonesuch", ["no file /nowhere/nonesuch", ""]),
        ] {
            assert_refused(&run(program), 1, &parts);
        }
        let file = lab.runtime().path().join("data");
        std::fs::write(&file, "data").unwrap();
        let refused = run(&file.display().to_string());
        assert_refused(&refused, 1, &["cannot be executed", "check its permissions"]);
    }

    #[test]
    fn a_second_lab_of_the_same_name_is_refused_and_the_first_lives_on() {
        let lab = TestLab::up("--distance 5km");
        for command in ["lab up --name check", "lab run --name check"] {
            let refused = run(lab.runtime(), command);
            let cure = "longhaul lab down --name check";
            assert_refused(
                &refused,
                1,
                &["a lab called 'check' is up already", cure, "another --name"],
            );
        }
        assert_eq!(lab.status()["spec"]["distance"], 5000);
        let other = run(lab.runtime(), "lab up --name other --distance 7km");
        assert!(other.status.success(), "{other}");
        assert!(run(lab.runtime(), "lab down --name other").status.success());
        assert_eq!(lab.status()["spec"]["distance"], 5000);
    }

    #[test]
    fn a_recording_that_cannot_be_written_stops_the_lab() {
        let runtime = RuntimeDir::new();
        let refused = run(&runtime, "lab up --pcap /nowhere/packets.pcap");
        assert_refused(&refused, 1, &["/nowhere/packets.pcap", "No such file"]);
        assert!(runtime.leftovers().is_empty(), "{:?}", runtime.leftovers());
    }

    #[test]
    fn the_environment_of_a_program_names_the_variable_to_mend() {
        require("ibv_devinfo", "ibverbs-utils");
        let lab = TestLab::up("");
        let mut command = lab.command("a", "env LONGHAUL_PATH_MTU=1500 ibv_devinfo");
        let refused = Program::start(&mut command).finish(LIMIT);
        let line = "LONGHAUL_PATH_MTU=1500: 256, 512, 1024, 2048 or 4096 is needed";
        assert!(refused.stderr.contains(line), "{refused}");
        assert!(!refused.status.success(), "{refused}");
    }
}

mod surroundings {
    use super::*;
    use std::fs::{self, Permissions};
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixStream;
    use std::process::{Command, Stdio};

    /// A pipe without a reader.
    fn closed_pipe() -> Stdio {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        writer.into()
    }

    #[test]
    fn a_directory_that_is_open_to_others_is_refused() {
        let runtime = RuntimeDir::new();
        let base = runtime.path().join("longhaul");
        fs::create_dir(&base).unwrap();
        fs::set_permissions(&base, Permissions::from_mode(0o770)).unwrap();
        for command in ["lab up", "lab run", "lab status", "lab down", "exec --host a -- true"] {
            let refused = run(&runtime, command);
            assert_refused(
                &refused,
                1,
                &["not a directory of yours alone", "remove it", "XDG_RUNTIME_DIR"],
            );
        }
    }

    /// A command whose files are limited to this many blocks of 512 bytes: further writes fail, as
    /// on a full disk.
    fn on_a_full_disk(runtime: &RuntimeDir, blocks: &str, arguments: &str) -> Command {
        let mut command = Command::new("sh");
        let limited = format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$0\" \"$@\"");
        command
            .arg("-c")
            .arg(limited)
            .arg(longhaul_checks::longhaul())
            .args(arguments.split_whitespace());
        command.env("XDG_RUNTIME_DIR", runtime.path()).env_remove("LD_PRELOAD");
        command
    }

    #[test]
    fn a_recording_that_fills_the_disk_is_told_of_and_the_lab_lives_on() {
        require("rping", "rdmacm-utils");
        let lab = TestLab::up("");
        lab.down();
        let capture = lab.runtime().path().join("all.pcap");
        let up = format!("lab up --name check --pcap {} --pcap-frames 100000", capture.display());
        Program::start(&mut on_a_full_disk(lab.runtime(), "64", &up)).succeed(LIMIT);
        let server = "rping -s -a 10.77.0.2 -C 100 -S 4000";
        let client = "rping -c -a 10.77.0.2 -C 100 -S 4000";
        lab.pair(server, client, Ready::Attached, LIMIT);
        let told = format!("the recording to {} ends: File too large", capture.display());
        eventually("status has it", || {
            lab.status()["log"].as_str().is_some_and(|log| log.contains(&told))
        });
        assert!(run(lab.runtime(), "lab status --name check").stdout.contains("log: "));
        lab.pair(server, client, Ready::Attached, LIMIT);
        let down = run(lab.runtime(), "lab down --name check");
        assert!(down.status.success() && down.stderr.contains(&told), "{down}");
    }

    #[test]
    fn a_key_that_cannot_be_written_leaves_no_file() {
        let runtime = RuntimeDir::new();
        for kind in ["new", "psk"] {
            let key = runtime.path().join(kind);
            let make = format!("key {kind} {}", key.display());
            let mut full = on_a_full_disk(&runtime, "0", &make);
            assert_refused(&Program::start(&mut full).finish(LIMIT), 1, &["cannot write", kind]);
            assert!(!key.exists());
            let unheard = fs::File::create("/dev/full").unwrap();
            assert_eq!(runtime.longhaul(&make).stdout(unheard).status().unwrap().code(), Some(1));
            assert!(!key.exists(), "nobody has heard its public key");
            assert!(run(&runtime, &make).status.success());
            assert_refused(&run(&runtime, &make), 1, &["already exists"]);
            assert!(key.exists());
        }
    }

    #[test]
    fn a_reader_of_the_output_that_has_gone_leaves_the_lab_up() {
        let runtime = RuntimeDir::new();
        for arguments in ["lab up", "lab status"] {
            let up = runtime
                .longhaul(arguments)
                .stdout(closed_pipe())
                .stderr(Stdio::piped())
                .output()
                .unwrap();
            assert!(up.status.success() && up.stderr.is_empty(), "{up:?}");
        }
        assert!(run(&runtime, "lab status").status.success());
        assert!(run(&runtime, "lab down").status.success());
    }

    #[test]
    fn a_lab_whose_starter_is_gone_before_it_is_up_ends() {
        let runtime = RuntimeDir::new();
        let up = run(&runtime, "lab up --json");
        assert!(run(&runtime, "lab down").status.success());
        let mut command = runtime.longhaul("lab serve");
        let mut orphan = command.stdin(Stdio::piped()).stdout(closed_pipe()).spawn().unwrap();
        orphan.stdin.take().unwrap().write_all(up.stdout.as_bytes()).unwrap();
        assert_eq!(orphan.wait().unwrap().code(), Some(1));
        assert!(runtime.leftovers().is_empty(), "{:?}", runtime.leftovers());
    }

    #[test]
    fn a_client_that_says_nothing_keeps_no_other_from_its_answer() {
        let lab = TestLab::up("");
        let control = lab.runtime().of_lab("check").join("control");
        let _silent: Vec<UnixStream> =
            (0..3).map(|_| UnixStream::connect(&control).unwrap()).collect();
        assert_eq!(lab.status()["spec"]["distance"], 0);
    }

    #[test]
    fn an_installation_in_a_path_with_a_space_and_a_colon_runs_programs() {
        require("ibv_devinfo", "ibverbs-utils");
        let lab = TestLab::up("");
        let installed = lab.runtime().path().join("my programs: longhaul");
        fs::create_dir(&installed).unwrap();
        for name in ["longhaul", "liblonghaul_preload.so"] {
            // By a process: children of other tests' threads would inherit a file that is open for
            // writing, which nobody may execute.
            let mut copy = Command::new("cp");
            copy.arg(longhaul_checks::longhaul().with_file_name(name)).arg(&installed);
            Program::start(&mut copy).succeed(LIMIT);
        }
        let mut command = Command::new(installed.join("longhaul"));
        command.env("XDG_RUNTIME_DIR", lab.runtime().path()).env_remove("LD_PRELOAD");
        command.args("exec --lab check --host a -- ibv_devinfo".split(' '));
        let shown = Program::start(&mut command).succeed(LIMIT);
        assert!(shown.stdout.contains("longhaul0"), "{shown}");
    }

    #[test]
    fn a_recording_is_there_as_soon_as_its_last_frame_is() {
        require("rping", "rdmacm-utils");
        let runtime = RuntimeDir::new();
        let capture = runtime.path().join("first.pcap");
        let lab = TestLab::up(&format!("--pcap {} --pcap-frames 3", capture.display()));
        let client = "rping -c -a 10.77.0.2 -C 3";
        lab.pair("rping -s -a 10.77.0.2 -C 3", client, Ready::Attached, LIMIT);
        let decoded = run(&runtime, &format!("decode {}", capture.display()));
        assert_eq!(decoded.stdout.lines().count(), 3, "{decoded}");
        assert!(lab.status()["pid"].is_u64());
    }
}

mod decode {
    use super::*;
    use longhaul_checks::{outside, packets};

    fn decode(name: &str, content: &[u8]) -> Finished {
        let file = outside::scratch_file(name, content);
        let finished = run(&RuntimeDir::new(), &format!("decode {}", file.display()));
        std::fs::remove_file(file).expect("the scratch file");
        finished
    }

    /// A capture of two valid packets.
    fn frames() -> Vec<Vec<u8>> {
        packets::every_kind().iter().take(2).map(packets::Fields::build).collect()
    }

    #[test]
    fn of_sound_packets_succeeds() {
        let finished = decode("sound.pcap", &packets::capture(&frames()));
        assert_eq!(finished.status.code(), Some(0), "{finished}");
        assert_eq!(finished.stdout.lines().count(), 2, "{finished}");
    }

    #[test]
    fn of_no_capture_ends_with_2() {
        for (name, content) in [("text.pcap", &b"no capture at all"[..]), ("empty.pcap", &[])] {
            assert_refused(&decode(name, content), 2, &[name, "is no capture"]);
        }
        let refused = run(&RuntimeDir::new(), "decode /nowhere/x.pcap");
        assert_refused(&refused, 2, &["cannot open /nowhere/x.pcap", "No such file"]);
        assert_refused(&run(&RuntimeDir::new(), "decode"), 2, &["CAPTURE"]);
    }

    #[test]
    fn of_a_capture_that_breaks_off_ends_with_2_after_what_is_whole() {
        let whole = packets::capture(&frames());
        let finished = decode("damaged.pcap", &whole[..whole.len() - 1]);
        assert_eq!(finished.status.code(), Some(2), "{finished}");
        assert_eq!(finished.stdout.lines().count(), 1, "{finished}");
        assert!(finished.stderr.contains("1 frames were read before"), "{finished}");
    }

    #[test]
    fn of_a_wrong_icrc_ends_with_1() {
        let mut frames = frames();
        *frames[1].last_mut().expect("a frame") ^= 1;
        let finished = decode("icrc.pcap", &packets::capture(&frames));
        assert_eq!(finished.status.code(), Some(1), "{finished}");
        assert_eq!(finished.stdout.matches("ICRC WRONG").count(), 1, "{finished}");
        assert!(finished.stderr.contains("1 packet with a wrong ICRC (frame 2)"), "{finished}");
    }
}

mod ctrl_c {
    use super::*;

    /// Checks that no process of `group` runs, and nothing is left in `runtime`.
    fn assert_gone(group: u32, runtime: &RuntimeDir) {
        eventually("all processes end", || members_of_group(group).is_empty());
        assert!(runtime.leftovers().is_empty(), "{:?}", runtime.leftovers());
        let shared = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten();
        let ours: Vec<_> = shared
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .filter(|name| name.contains("longhaul") || name.contains("memif"))
            .collect();
        assert!(ours.is_empty(), "in /dev/shm: {ours:?}");
    }

    #[test]
    fn during_the_demo_leaves_nothing_behind() {
        require("ib_write_bw", "perftest");
        let _turn = longhaul_checks::Turn::take();
        let runtime = RuntimeDir::new();
        let out = runtime.path().join("out");
        let mut demo = Program::start_group(
            &mut runtime.longhaul(&format!("demo --quick --out {}", out.display())),
        );
        let group = demo.id();
        eventually("both programs run", || {
            assert!(demo.is_running(), "the demo ended early");
            let programs = members_of_group(group);
            programs.iter().filter(|line| line.starts_with("ib_write_bw")).count() == 2
        });
        demo.interrupt_group();
        let ended = demo.finish(LIMIT);
        assert!(!ended.status.success(), "{ended}");
        std::fs::remove_dir_all(&out).expect("the demo's directory");
        assert_gone(group, &runtime);
    }

    #[test]
    fn ends_a_lab_in_the_foreground_with_success() {
        let runtime = RuntimeDir::new();
        let lab = Program::start_group(&mut runtime.longhaul("lab run --distance 10km"));
        let group = lab.id();
        eventually("the lab is up", || run(&runtime, "lab status").status.success());
        lab.interrupt_group();
        lab.succeed(LIMIT);
        assert_gone(group, &runtime);
    }

    #[test]
    fn during_a_transfer_frees_the_hosts_for_the_next_one() {
        require("ib_write_bw", "perftest");
        let lab = TestLab::up("--distance 100km --accelerate");
        let port = free_tcp_port();
        let line = format!("ib_write_bw -d longhaul0 -F -p {port} -s 65536 -D 600 -u 18");
        let server = Program::start_group(&mut lab.command("b", &line));
        let server = lab.wait_for(server, Ready::Tcp(port));
        let client = Program::start_group(&mut lab.command("a", &format!("{line} 127.0.0.1")));
        let groups = [server.id(), client.id()];
        eventually("data is in flight", || {
            lab.status()["link"][0]["delivered_frames"].as_u64() > Some(10_000)
        });
        for program in [client, server] {
            program.interrupt_group();
            let ended = program.finish(LIMIT);
            assert!(!ended.status.success(), "{ended}");
        }
        eventually("both hosts are empty", || {
            let hosts = &lab.status()["hosts"];
            (0..2).all(|host| hosts[host]["programs"] == 0 && hosts[host]["waiting_frames"] == 0)
        });
        let line = format!("ib_write_bw -d longhaul0 -F -p {port} -s 65536 -n 100 -u 18");
        lab.pair(&line, &format!("{line} 127.0.0.1"), Ready::Tcp(port), LIMIT);
        lab.down();
        for group in groups {
            assert_gone(group, lab.runtime());
        }
    }
}

mod killed_lab {
    use super::*;

    #[test]
    fn is_cleaned_up_by_the_next_one_of_its_name() {
        require("ibv_devinfo", "ibverbs-utils");
        let lab = TestLab::up("--distance 1km");
        lab.kill();
        assert!(!lab.runtime().leftovers().is_empty(), "a killed daemon cannot clean up");
        let refused = run(lab.runtime(), "lab status --name check");
        assert_refused(&refused, 1, &["no lab called 'check' is up"]);
        lab.up_again("--distance 2km");
        assert_eq!(lab.status()["spec"]["distance"], 2000);
        lab.exec("a", "ibv_devinfo").succeed(LIMIT);
        lab.down();
        assert!(lab.runtime().leftovers().is_empty(), "{:?}", lab.runtime().leftovers());
    }

    #[test]
    fn in_the_middle_of_a_transfer_ends_the_program_by_its_own_retry_budget() {
        require("ib_write_bw", "perftest");
        for accelerate in ["", "--accelerate"] {
            let lab = TestLab::up(&format!("--distance 100km {accelerate}"));
            let port = free_tcp_port();
            // 2^16 times 4.096 µs and seven retries: two seconds, and up to four times that by
            // the standard.
            let line = format!("ib_write_bw -d longhaul0 -F -p {port} -s 65536 -D 600 -u 16");
            let (server, client) =
                lab.start_pair(&line, &format!("{line} 127.0.0.1"), Ready::Tcp(port));
            eventually("data is in flight", || {
                lab.status()["link"][0]["delivered_frames"].as_u64() > Some(10_000)
            });
            lab.kill();
            let client = client.finish(LIMIT);
            // Well before the 600 seconds are over, perftest reports its status:
            // IBV_WC_RETRY_EXC_ERR.
            let said = format!("{}{}", client.stdout, client.stderr);
            assert!(said.contains("Failed status 12"), "{client}");
            assert!(!client.status.success(), "{client}");
            // It waits for its client's goodbye over TCP.
            server.finish(LIMIT);
        }
    }
}
