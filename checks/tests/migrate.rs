//! Live migration by QEMU over a lab and between QEMUs: guests arrive with their memory, and
//! failures name cause and cure.

use longhaul_checks::{Finished, Program, RuntimeDir, Turn, free_tcp_port, require};
use longhaul_migration::guest::{CHECK_ALL, Load, Report};
use longhaul_migration::machine::{Accel, Config, Machine};
use longhaul_namespace::skip;
use serde_json::{Value, json};
use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(180);
const QEMU: &str = "qemu-system-x86_64";

fn require_qemu() {
    require(QEMU, "qemu-system-x86");
}

fn json_of(finished: &Finished) -> Value {
    serde_json::from_str(&finished.stdout).unwrap_or_else(|e| panic!("{e}: {finished}"))
}

fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}: not within {LIMIT:?}");
        thread::sleep(Duration::from_millis(10));
    }
}

fn assert_refused(finished: &Finished, parts: &[&str]) {
    assert!(!finished.status.success(), "{finished}");
    assert_eq!(finished.stdout, "", "{finished}");
    assert_eq!(finished.stderr.lines().count(), 1, "{finished}");
    for part in parts {
        assert!(finished.stderr.contains(part), "{part:?} is missing: {finished}");
    }
}

mod guest {
    use super::*;

    const MEMORY: u64 = 32 << 20;
    /// These waits are not interrupted.
    static NEVER: AtomicBool = AtomicBool::new(false);

    #[test]
    fn the_image_is_what_the_assembler_makes_of_its_source() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../migration/guest");
        let files = RuntimeDir::new();
        let (object, image) = (files.path().join("guest.o"), files.path().join("guest.bin"));
        let run = |program: &str, arguments: &[&str], paths: [&Path; 2]| {
            let mut command = Command::new(program);
            command.args(arguments).arg(paths[0]).arg(paths[1]);
            Program::start(&mut command).succeed(LIMIT);
        };
        require("as", "binutils");
        run("as", &["--64", "-o"], [&object, &folder.join("guest.s")]);
        let link = ["-e", "0x100000", "-Ttext=0x100000", "--oformat", "binary", "-o"];
        run("ld", &link, [&image, &object]);
        let committed = fs::read(folder.join("guest.bin")).expect("the image");
        assert_eq!(fs::read(image).expect("an image"), committed);
    }

    /// A guest with its memory in a file.
    fn start(files: &RuntimeDir, load: &Load) -> (Machine, fs::File) {
        let path = |name: &str| files.path().join(name);
        fs::write(path("image"), load.image().expect("a load")).expect("an image");
        let (image, socket) = (path("image"), path("qmp"));
        let accel = Accel::Tcg;
        let config = Config { accel, memory: load.memory, image, disk: None, socket, waits: false };
        let memory = path("memory");
        let mut command = Command::new(QEMU);
        let (size, at) = (load.memory, memory.display());
        command
            .args(config.arguments())
            .arg("-object")
            .arg(format!("memory-backend-file,id=memory,size={size},share=on,mem-path={at}"))
            .args(["-machine", "memory-backend=memory"]);
        let mut machine = Machine::start(command, config.socket).expect("QEMU");
        let started = machine.wait_until("started", LIMIT, &NEVER, |heard| heard.report.is_some());
        started.unwrap_or_else(|error| panic!("{error}"));
        let memory = OpenOptions::new().read(true).write(true).open(memory).expect("its memory");
        (machine, memory)
    }

    fn checked(machine: &mut Machine, times: u64) -> Report {
        machine.order(CHECK_ALL).unwrap_or_else(|error| panic!("{error}"));
        let is_done = |report: &Report| report.full_checks == times;
        let done = machine.wait_until("checked its memory", LIMIT, &NEVER, |heard| {
            heard.report.as_ref().is_some_and(|(_, report)| is_done(report))
        });
        done.unwrap_or_else(|error| panic!("{error}"));
        machine.heard().report.expect("a report").1
    }

    #[test]
    fn a_changed_a_stale_and_a_misplaced_page_are_found() {
        require_qemu();
        let (_turn, files) = (Turn::take(), RuntimeDir::new());
        let load = Load { memory: MEMORY, working_set: 64 << 10, dirty_per_s: 0, check_per_s: 0 };
        let (mut machine, memory) = start(&files, &load);
        let first = checked(&mut machine, 1);
        assert_eq!((first.checked, first.wrong), (load.pages(), 0));
        // The guest's pages begin at 8 MiB.
        let place = |page: u64| (8 << 20) + page * 4096;
        let read = |page: u64| {
            let mut bytes = vec![0; 4096];
            memory.read_exact_at(&mut bytes, place(page)).expect("a page");
            bytes
        };
        let write = |page: u64, bytes: &[u8]| {
            memory.write_all_at(bytes, place(page)).expect("a page");
        };
        let original = read(5000);
        for (number, changed) in [
            (1, {
                let mut bytes = original.clone();
                bytes[4095] ^= 1;
                bytes
            }),
            (2, read(5001)),
            (3, {
                let mut bytes = original.clone();
                bytes.rotate_left(8);
                bytes
            }),
            (4, vec![0; 4096]),
        ] {
            write(5000, &changed);
            let report = checked(&mut machine, number + 1);
            assert_eq!((report.wrong, report.first_wrong), (number, 5000));
        }
        write(5000, &original);
        assert_eq!(checked(&mut machine, 6).wrong, 4);
    }

    #[test]
    fn an_old_generation_of_a_page_is_found() {
        require_qemu();
        let (_turn, files) = (Turn::take(), RuntimeDir::new());
        // A generation each eighth of a second.
        let load =
            Load { memory: MEMORY, working_set: 1 << 20, dirty_per_s: 8 << 20, check_per_s: 0 };
        let (mut machine, memory) = start(&files, &load);
        let generation = |machine: &Machine| machine.heard().report.expect("a report").1.generation;
        let mut page = vec![0; 4096];
        memory.read_exact_at(&mut page, 8 << 20).expect("a page");
        let then = generation(&machine);
        eventually("generations pass", || {
            assert!(machine.end().is_none(), "QEMU ends");
            generation(&machine) > then + 2
        });
        assert_eq!(machine.heard().report.expect("a report").1.wrong, 0);
        // It may be written anew before it is checked: then once more.
        eventually("the page is found", || {
            memory.write_all_at(&page, 8 << 20).expect("a page");
            assert!(machine.end().is_none(), "QEMU ends");
            machine.heard().report.expect("a report").1.wrong > 0
        });
        assert_eq!(machine.heard().report.expect("a report").1.first_wrong, 0);
    }
}

mod over_a_lab {
    use super::*;

    fn run(runtime: &RuntimeDir, options: &str) -> Program {
        Program::start(&mut runtime.longhaul(&format!("migrate run --json {options}")))
    }

    /// The result; `None` where TCP or NBD has no network, which was reported.
    fn measured(runtime: &RuntimeDir, options: &str) -> Option<Value> {
        let finished = run(runtime, options).finish(LIMIT);
        if finished.stderr.contains("the hosts have no IP network for") {
            skip(&finished.stderr);
            return None;
        }
        assert!(finished.status.success(), "{finished}");
        let result = json_of(&finished);
        assert_eq!(result["checked"]["wrong"], 0, "{finished}");
        // All memory but the first 8 MiB.
        let pages = (result["guest"]["memory_bytes"].as_u64().unwrap() - (8 << 20)) / 4096;
        assert!(result["checked"]["pages"].as_u64().unwrap() >= pages, "{finished}");
        Some(result)
    }

    #[test]
    fn a_guest_arrives_with_its_memory() {
        require_qemu();
        let (_turn, runtime) = (Turn::take(), RuntimeDir::new());
        let guest = "--memory 64M --dirty 10M --working-set 16M --downtime-limit 1000";
        for path in [
            "--distance 0km --transport rdma-pin-all",
            "--distance 100km --transport rdma --accelerate transport --loss 1e-3",
            "--distance 0km --transport tcp --congestion cubic",
            "--distance 100km --transport tcp-multifd --disk 16M",
            "--distance 0km --transport rdma-pin-all --disk 16M",
        ] {
            let Some(result) = measured(&runtime, &format!("{guest} {path}")) else { continue };
            assert_eq!(result["outcome"], "completed", "{result}");
            if path.contains("cubic") {
                assert_eq!(result["congestion_control"], "cubic", "{result}");
            }
            assert_eq!(result["checked"]["at"], "destination", "{result}");
            // No page of the pattern is empty.
            assert!(result["transferred_bytes"].as_u64().unwrap() >= 56 << 20, "{result}");
            let phases = result["phases"].as_object().unwrap();
            let sum: f64 = phases.values().map(|phase| phase.as_f64().unwrap()).sum();
            let total = result["total_s"].as_f64().unwrap();
            assert!((sum - total).abs() < 1e-6, "{result}");
            assert!(result["silence_ms"].is_u64() && result["downtime_ms"].is_u64(), "{result}");
            if path.contains("--disk") {
                assert_eq!(result["disk"]["bytes"], 16 << 20, "{result}");
                assert_eq!(result["disk"]["wrong_bytes"], 0, "{result}");
            }
        }
        assert_eq!(runtime.leftovers(), Vec::<PathBuf>::new());
    }

    #[test]
    fn a_disk_that_takes_too_long_keeps_the_guest_where_it_is() {
        require_qemu();
        let (_turn, runtime) = (Turn::take(), RuntimeDir::new());
        let options = "--memory 64M --dirty 1M --rate 10M --disk 64M --timeout 2";
        let Some(result) = measured(&runtime, options) else { return };
        assert_eq!(result["outcome"], "did not finish", "{result}");
        let reason = result["reason"].as_str().unwrap();
        assert!(reason.starts_with("the disk is still being copied: "), "{result}");
        assert_eq!(result["checked"]["at"], "source", "{result}");
        assert_eq!(runtime.leftovers(), Vec::<PathBuf>::new());
    }

    #[test]
    fn a_guest_that_dirties_faster_than_the_path_carries_does_not_finish() {
        require_qemu();
        let (_turn, runtime) = (Turn::take(), RuntimeDir::new());
        for transport in ["rdma-pin-all", "tcp"] {
            // A pass takes more than half a second, in which the working set is dirtied.
            let path = format!("--rate 100M --timeout 40 --transport {transport}");
            let guest = "--memory 64M --dirty 100M --working-set 8M --downtime-limit 20";
            let Some(result) = measured(&runtime, &format!("{guest} {path}")) else { continue };
            assert_eq!(result["outcome"], "did not finish", "{result}");
            let reason = result["reason"].as_str().unwrap();
            assert!(reason.starts_with("diverges: after"), "{result}");
            assert_eq!(result["checked"]["at"], "source", "{result}");
        }
    }

    /// Children of process `id` whose command line contains `word`.
    fn children(id: u32, word: &str) -> Vec<u32> {
        let list = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
        let ids = list.split_whitespace().filter_map(|id| id.parse().ok());
        let has_word = |id: &u32| {
            let line = fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).contains(word)
        };
        ids.filter(has_word).collect()
    }

    fn sent_frames(runtime: &RuntimeDir, lab: &str) -> u64 {
        let mut command = runtime.longhaul(&format!("lab status --json --name {lab}"));
        let status = Program::start(&mut command).finish(LIMIT);
        let status: Value = serde_json::from_str(&status.stdout).unwrap_or_default();
        status["hosts"][0]["counters"]["tx_frames"].as_u64().unwrap_or_default()
    }

    #[test]
    fn a_qemu_that_dies_is_told_from_a_migration_that_fails() {
        require_qemu();
        let (_turn, runtime) = (Turn::take(), RuntimeDir::new());
        for side in ["source", "destination"] {
            let mut program = run(&runtime, "--memory 128M --rate 100M --timeout 100");
            let lab = format!("migrate-{}", program.id());
            eventually("memory is sent", || {
                assert!(program.is_running(), "it has ended");
                sent_frames(&runtime, &lab) > 500
            });
            let [qemu] = children(program.id(), &format!("{side}.qmp"))[..] else {
                panic!("no single {side}")
            };
            Program::start(Command::new("kill").args(["-9", &qemu.to_string()])).succeed(LIMIT);
            let killed = program.finish(LIMIT);
            assert_refused(&killed, &[side, "QEMU ended (signal: 9"]);
            assert_eq!(runtime.leftovers(), Vec::<PathBuf>::new());
        }
    }

    #[test]
    fn ctrl_c_ends_it_with_a_result() {
        require_qemu();
        let (_turn, runtime) = (Turn::take(), RuntimeDir::new());
        let options = "migrate run --json --memory 128M --rate 100M --timeout 100";
        let mut program = Program::start_group(&mut runtime.longhaul(options));
        let lab = format!("migrate-{}", program.id());
        eventually("memory is sent", || {
            assert!(program.is_running(), "it has ended");
            sent_frames(&runtime, &lab) > 500
        });
        // As at a terminal: neither the QEMUs nor the lab are of the group.
        program.interrupt_group();
        let ended = program.finish(LIMIT);
        assert_eq!(ended.status.code(), Some(130), "{ended}");
        assert_eq!(json_of(&ended)["reason"], "interrupted", "{ended}");
        assert_eq!(runtime.leftovers(), Vec::<PathBuf>::new());
    }

    #[test]
    fn what_no_guest_can_do_is_refused() {
        let runtime = RuntimeDir::new();
        for (options, parts) in [
            ("--memory 1M", ["a guest has 16 MiB to", "--memory 1G"]),
            ("--memory 64M --working-set 1G", ["has room for", "smaller --working-set"]),
            ("--congestion cubic", ["--congestion is for TCP", "--transport tcp"]),
            ("--timeout 18446744073709551615", ["--timeout", "604800"]),
            ("--transport udp", ["--transport", "rdma-pin-all"]),
            ("--lab l --distance 1km", ["--lab", "cannot be used with"]),
            ("--lab none-such", ["no lab called 'none-such' is up", ""]),
            ("--qemu no-such-qemu", ["no program 'no-such-qemu'", ""]),
        ] {
            assert_refused(&run(&runtime, options).finish(LIMIT), &parts);
        }
        assert_eq!(runtime.leftovers(), Vec::<PathBuf>::new());
    }
}

mod between {
    use super::*;

    /// A QEMU without a guest that runs.
    struct Idle {
        program: Program,
        socket: PathBuf,
    }

    impl Idle {
        fn start(files: &RuntimeDir, name: &str, options: &str) -> Self {
            let socket = files.path().join(name);
            let line = "-nodefaults -no-user-config -display none -machine pc -accel tcg -S";
            let mut command = Command::new(QEMU);
            command
                .args(line.split(' '))
                .args(options.split(' '))
                .args(["-qmp", &format!("unix:{},server=on,wait=off", socket.display())]);
            let mut program = Program::start(&mut command);
            eventually("it listens", || {
                assert!(program.is_running(), "QEMU ends");
                UnixStream::connect(&socket).is_ok()
            });
            Idle { program, socket }
        }
    }

    fn between(files: &RuntimeDir, ends: [&Path; 2], options: &str) -> Finished {
        let [source, destination] = ends.map(|end| end.display().to_string());
        let line = format!("migrate between {source} {destination} --json {options}");
        Program::start(&mut files.longhaul(&line)).finish(LIMIT)
    }

    #[test]
    fn two_qemus_are_driven_through_their_sockets() {
        require_qemu();
        let (_turn, files) = (Turn::take(), RuntimeDir::new());
        let source = Idle::start(&files, "a", "-m 64M");
        let options = format!("--transport tcp --to 127.0.0.1:{}", free_tcp_port());
        // Not waiting for a guest.
        let other = Idle::start(&files, "b", "-m 64M");
        let refused = between(&files, [&source.socket, &other.socket], &options);
        assert_refused(&refused, &["destination: the guest is in state", "-incoming defer"]);
        // Of another machine.
        let other = Idle::start(&files, "c", "-m 32M -incoming defer");
        let refused = between(&files, [&source.socket, &other.socket], &options);
        assert_refused(&refused, &["destination: QEMU", "closed its connection"]);
        drop(other.program);
        // Its guest may have been sent before that: another source is needed.
        let source = Idle::start(&files, "e", "-m 64M");
        // No address of this machine.
        let destination = Idle::start(&files, "d", "-m 64M -incoming defer");
        let elsewhere = "--transport tcp --to 192.0.2.1:4455";
        let refused = between(&files, [&source.socket, &destination.socket], elsewhere);
        assert_refused(&refused, &["destination: QEMU", "refuses migrate-incoming"]);
        // A guest that is paused stays so.
        let moved = between(&files, [&source.socket, &destination.socket], &options);
        assert!(moved.status.success(), "{moved}");
        let result = json_of(&moved);
        assert_eq!((&result["outcome"], &result["guest"]), (&json!("completed"), &Value::Null));
    }

    #[test]
    fn a_socket_that_is_no_qmp_is_told_by_what_it_says() {
        let files = RuntimeDir::new();
        let absent = files.path().join("absent");
        let refused = between(&files, [&absent, &absent], "--to 127.0.0.1:1");
        assert_refused(&refused, &["source: cannot connect to QMP at", "server=on,wait=off"]);
        for (said, parts) in [
            (&b"SSH-2.0-OpenSSH\r\n"[..], ["it says 'SSH-2.0-OpenSSH'", "name a socket of '-qmp'"]),
            (b"{\"QMP\": {}}\nnonsense\n", ["it says 'nonsense'", "name a socket of '-qmp'"]),
            (b"{\"hello\": 1}\n", ["it says '{\"hello\":1}'", "name a socket of '-qmp'"]),
            (b"", ["closed its connection", "see what that QEMU printed"]),
        ] {
            let path = files.path().join("nonsense");
            let listener = UnixListener::bind(&path).expect("a socket");
            let says = thread::spawn(move || {
                let (mut stream, _) = listener.accept().expect("a client");
                // The client may be gone.
                let _ = stream.write_all(said);
            });
            let refused = between(&files, [&path, &path], "--to 127.0.0.1:1");
            assert_refused(&refused, &parts);
            says.join().expect("it says so");
            fs::remove_file(path).expect("the socket");
        }
    }

    #[test]
    fn a_socket_that_serves_another_client_is_told() {
        let files = RuntimeDir::new();
        let path = files.path().join("busy");
        // Connections wait in the backlog, as at QEMU's.
        let _listener = UnixListener::bind(&path).expect("a socket");
        let refused = between(&files, [&path, &path], "--to 127.0.0.1:1");
        assert_refused(&refused, &["no QMP greeting from", "serves one client at a time"]);
    }

    /// Answers as a QEMU in `status` that refuses `refused`, with these words.
    fn imitate(path: &Path, status: &'static str, refused: &'static str, words: &'static str) {
        let listener = UnixListener::bind(path).expect("a socket");
        thread::spawn(move || {
            let (stream, _) = listener.accept().expect("a client");
            let mut to = stream.try_clone().expect("a socket");
            to.write_all(b"{\"QMP\": {\"version\": {}}}\n").expect("a greeting");
            for line in BufReader::new(stream).lines().map_while(Result::ok) {
                let command: Value = serde_json::from_str(&line).expect("a command");
                let names = ["events", "rdma-pin-all", "multifd"];
                let mut reply = match command["execute"].as_str().expect("a name") {
                    name if name == refused => {
                        json!({"error": {"class": "GenericError", "desc": words}})
                    }
                    "query-status" => json!({"return": {"status": status}}),
                    "query-migrate-capabilities" => json!({
                        "return": names.map(|name| json!({"capability": name, "state": false}))
                    }),
                    _ => json!({"return": {}}),
                };
                reply["id"] = command["id"].clone();
                if to.write_all(format!("{reply}\n").as_bytes()).is_err() {
                    return;
                }
            }
        });
    }

    #[test]
    fn a_qemu_without_rdma_is_told() {
        let files = RuntimeDir::new();
        let [source, destination] = ["source", "destination"].map(|name| files.path().join(name));
        imitate(&source, "running", "", "");
        let words = "unknown migration protocol: rdma:10.77.0.2:4455";
        imitate(&destination, "inmigrate", "migrate-incoming", words);
        let refused = between(&files, [&source, &destination], "--to 10.77.0.2:4455");
        assert_refused(&refused, &["destination", words, "built without RDMA", "--transport tcp"]);
    }

    #[test]
    fn a_command_line_that_makes_no_sense_is_refused() {
        let runtime = RuntimeDir::new();
        for (line, part) in [
            ("migrate between a b --to 1.2.3.4:5", "HOST:PORT"),
            ("migrate between ./a ./b --to 1.2.3.4", "an address with a port"),
            ("migrate between ./a ./b", "--to"),
        ] {
            let refused = Program::start(&mut runtime.longhaul(line)).finish(LIMIT);
            assert_eq!(refused.status.code(), Some(2), "{refused}");
            assert!(refused.stderr.contains(part), "{refused}");
        }
    }
}
