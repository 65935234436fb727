//! Telescope ingest over a lab: what the receiver flags is what a capture at its port shows.

use longhaul_checks::packets::Fields;
use longhaul_checks::{
    Finished, Program, RuntimeDir, TestLab, free_tcp_port, longhaul, python, wait_for_listener,
};
use longhaul_namespace::skip;
use longhaul_wire::{Position, Transport, pcap};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(300);
/// With regions for more windows than are sent: however late the chunks are taken, none is
/// overwritten.
const ROOMY: &str = "--until-idle --regions 32";

/// Settings of a receiver that waits longer than a busy machine stops a sender or the fibre.
const PATIENT: &str = "idle_ms = 60000\nlinger_ms = 2000\n";

/// A lab whose host a receives: its port is the one that a lab records.
struct Ingest {
    lab: TestLab,
    port: u16,
    /// A file of [`PATIENT`] settings.
    patient: PathBuf,
}

impl Ingest {
    fn over(path: &str) -> Self {
        Self::over_with(path, &[])
    }

    /// With arguments that may contain spaces.
    fn over_with(path: &str, others: &[&str]) -> Self {
        let lab = TestLab::up_with(path.split_whitespace().chain(others.iter().copied()));
        let patient = lab.runtime().path().join("patient.toml");
        fs::write(&patient, PATIENT).unwrap();
        Ingest { lab, port: free_tcp_port(), patient }
    }

    fn receiver(&self, options: &str) -> Program {
        self.receiver_by(&self.patient, options)
    }

    fn receiver_by(&self, config: &Path, options: &str) -> Program {
        let (port, config) = (self.port, config.display());
        let listen = format!("--listen 127.0.0.1:{port} --config {config}");
        let line = format!("{} ingest receive --json {listen} {options}", program());
        wait_for_listener(self.lab.exec("a", &line), port)
    }

    fn sender(&self, options: &str) -> Program {
        let line = format!("{} ingest send 127.0.0.1:{} --json", program(), self.port);
        self.lab.exec("b", &format!("{line} {options}"))
    }
}

fn program() -> String {
    longhaul().display().to_string()
}

fn json(finished: &Finished) -> Value {
    serde_json::from_str(&finished.stdout).unwrap_or_else(|e| panic!("{e}: {finished}"))
}

/// What a running program writes to `path`, once it is there and whole.
fn eventually_json(path: &Path) -> Value {
    let mut whole = None;
    wait_until(|| {
        let text = fs::read_to_string(path).unwrap_or_default();
        whole = serde_json::from_str(&text).ok();
        whole.is_some()
    });
    whole.unwrap()
}

/// Messages of a raw sink that are present: stream, window, index.
fn present_in_index(dir: &Path) -> BTreeSet<(u32, u64, u32)> {
    let mut present = BTreeSet::new();
    for line in fs::read_to_string(dir.join("index.jsonl")).unwrap().lines() {
        let entry: Value = serde_json::from_str(line).unwrap();
        let (stream, window) = (entry["stream"].as_u64().unwrap(), entry["window"].as_u64());
        let mut index = 0;
        for row in entry["fates"].as_array().unwrap() {
            let (fate, count) = (row[0].as_u64().unwrap(), row[1].as_u64().unwrap() as u32);
            if fate == 1 {
                present.extend((index..index + count).map(|i| (stream as u32, window.unwrap(), i)));
            }
            index += count;
        }
    }
    present
}

/// Messages that arrived complete according to a capture: those of the default layout whose packets
/// follow each other on their queue pair.
fn present_in_capture(file: &Path) -> BTreeSet<(u32, u64, u32)> {
    let capture = fs::read(file).unwrap();
    let mut expected: BTreeMap<u32, u32> = BTreeMap::new();
    let mut present = BTreeSet::new();
    for record in pcap::records(&capture) {
        let record = record.expect("a valid capture");
        let Ok(Some((fields, _))) = Fields::read(record.data) else { continue };
        if fields.bth.opcode.transport() != Transport::Uc {
            continue;
        }
        let (qpn, psn) = (fields.bth.dest_qp.get(), fields.bth.psn.get());
        let is_first = matches!(fields.bth.opcode.position(), Position::First | Position::Only);
        // A packet behind a gap belongs to a message that is lost.
        let is_whole = is_first || expected.get(&qpn) == Some(&psn);
        if is_whole {
            expected.insert(qpn, (psn + 1) & 0x00ff_ffff);
        } else {
            expected.remove(&qpn);
        }
        if let Some(immediate) = fields.immediate.filter(|_| is_whole) {
            let value = u32::from_be_bytes(immediate);
            present.insert((value >> 24, u64::from(value >> 12 & 0xfff), value & 0xfff));
        }
    }
    present
}

/// Sends 8 windows of `subbands` times 5 messages with gaps over a path with `faults`, and
/// compares each flag with a capture. Returns the receiver's summary and the frames that the fibre
/// lost.
fn flags_are_those_of_a_capture(subbands: u32, message: u32, faults: &[&str]) -> (Value, u64) {
    let files = RuntimeDir::new();
    let (capture, sink) = (files.path().join("a.pcap"), files.path().join("sink"));
    let lab = "--distance 1000km --rate 10G --pcap-frames 400000 --pcap";
    let ingest = Ingest::over_with(&format!("{lab} {}", capture.display()), faults);
    let (slots, windows) = (subbands * 5, 8);
    let layout = format!("--slots {slots} --message {message} --until-idle --verify");
    let receiver = ingest.receiver(&format!("{layout} --sink raw:{}", sink.display()));
    let station = format!("--subbands {subbands} --blocks 5 --message {message}");
    let sender = ingest.sender(&format!("{station} --windows {windows} --rate 400M --gap 0.01"));
    let sent = json(&sender.succeed(LIMIT));
    let received = json(&receiver.succeed(LIMIT));
    let losses = ingest.lab.losses(1);
    ingest.lab.down();

    let present = present_in_index(&sink);
    let captured = present_in_capture(&capture);
    let differing: Vec<_> = present.symmetric_difference(&captured).take(5).collect();
    assert!(differing.is_empty(), "{differing:?}: {received}");
    assert_eq!(fate(&received, "present"), present.len() as u64, "{received}");
    assert_eq!(fate(&received, "never_sent"), sent["unsent"].as_u64().unwrap(), "{received}");
    let arrived_or_unsent = fate(&received, "present") + fate(&received, "never_sent");
    let total = u64::from(slots) * windows;
    assert_eq!(arrived_or_unsent + fate(&received, "lost"), total, "{received}");
    assert_eq!(received["damaged"], 0, "{received}");
    (received, losses)
}

/// Messages of the summary with this fate.
fn fate(received: &Value, fate: &str) -> u64 {
    received["messages"][fate].as_u64().unwrap()
}

fn loss_is_flagged(subbands: u32) {
    let (received, losses) = flags_are_those_of_a_capture(subbands, 4500, &["--loss", "1e-2"]);
    let lost = fate(&received, "lost");
    assert!(losses > 0 && lost > 0, "{losses} frames lost: {received}");
    // A message has two packets, and at most all of a lost message's are lost.
    assert!((losses / 2..=losses).contains(&lost), "{losses} frames lost: {received}");
}

#[test]
fn two_hundred_queue_pairs_are_flagged_as_a_capture_shows() {
    loss_is_flagged(200);
}

#[test]
fn reordered_and_duplicated_packets_are_flagged_as_a_capture_shows() {
    let faults = ["--rule", "roce: reorder 1ms 2%", "--rule", "roce: duplicate 2%"];
    // Messages of two packets whose order changes are lost, those of one are not.
    let (received, _) = flags_are_those_of_a_capture(50, 4500, &faults);
    assert!(fate(&received, "lost") > 0, "{received}");
    let (received, _) = flags_are_those_of_a_capture(50, 4000, &faults);
    assert_eq!(fate(&received, "lost"), 0, "{received}");
    assert!(received["duplicates"].as_u64().unwrap() > 0, "{received}");
}

#[test]
#[ignore = "nightly: 800 queue pairs, the most whose slots the default layout has room for"]
fn eight_hundred_queue_pairs_are_flagged_as_a_capture_shows() {
    loss_is_flagged(800);
}

#[test]
#[ignore = "nightly: 2,000 queue pairs of one receiver, at losses of 0, 1e-4 and 1e-2"]
fn two_thousand_queue_pairs_lose_what_the_fibre_loses() {
    for loss in ["0", "1e-4", "1e-2"] {
        for message in ["8K", "16K"] {
            let ingest = Ingest::over(&format!("--distance 1000km --rate 10G --loss {loss}"));
            let receiver =
                ingest.receiver(&format!("--slots 4000 --message {message} --until-idle --verify"));
            let options = format!("--subbands 2000 --blocks 2 --message {message}");
            let sender = ingest.sender(&format!("{options} --rate 1G --windows 8"));
            sender.succeed(LIMIT);
            let received = json(&receiver.succeed(LIMIT));
            let losses = ingest.lab.losses(1);
            let lost = fate(&received, "lost");
            let what = format!("{loss}, {message}: {losses} frames lost, {received}");
            assert_eq!(fate(&received, "present") + lost, 32_000, "{what}");
            assert!(lost <= losses && (lost > 0) == (losses > 0), "{what}");
            assert_eq!(received["damaged"], 0, "{what}");
        }
    }
}

#[test]
fn the_transport_delivers_all_in_order() {
    let files = RuntimeDir::new();
    let ingest = Ingest::over("--distance 1000km --rate 10G --loss 1e-3 --accelerate transport");
    let receiver =
        ingest.receiver(&format!("{ROOMY} --verify --sink raw:{}", files.path().display()));
    ingest.sender("--rate 300M --windows 20").succeed(LIMIT);
    let received = json(&receiver.succeed(LIMIT));
    assert!(ingest.lab.losses(1) > 0, "the fibre lost nothing");
    assert_eq!(received["messages"]["present"], 20 * 256, "{received}");
    assert_eq!((&received["windows_complete"], &received["damaged"]), (&20.into(), &0.into()));
    let index = fs::read_to_string(files.path().join("index.jsonl")).unwrap();
    let windows = index.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let windows: Vec<u64> = windows.map(|entry| entry["window"].as_u64().unwrap()).collect();
    assert_eq!(windows, (0..20).collect::<Vec<_>>());
}

/// The preloaded library is a device of libibverbs here.
#[test]
fn a_device_of_libibverbs_serves_both_ends() {
    for receives in ["{ shared = 4096 }", "{ per_pair = 512 }"] {
        let ingest = Ingest::over("--distance 10km --rate 10G");
        let files = RuntimeDir::new();
        let config = files.path().join("station.toml");
        let text = format!("receives = {receives}\nregions = 64\n{PATIENT}");
        fs::write(&config, text).unwrap();
        let receiver = ingest.receiver_by(&config, "--device longhaul0 --until-idle --verify");
        ingest.sender("--device longhaul0 --rate 300M --windows 20 --list 4").succeed(LIMIT);
        let received = json(&receiver.succeed(LIMIT));
        assert_eq!(received["messages"]["present"], 20 * 256, "{receives}: {received}");
        assert_eq!(received["damaged"], 0, "{receives}: {received}");
    }
    let ingest = Ingest::over("--distance 0km --rate 10G");
    let refused = ingest.sender("--device mlx5_7").finish(LIMIT);
    assert!(refused.stderr.contains("there is no mlx5_7; libibverbs has: longhaul0"), "{refused}");
}

#[test]
fn a_sender_that_dies_may_return_and_ctrl_c_keeps_what_arrived() {
    let files = RuntimeDir::new();
    let ingest = Ingest::over("--distance 10km --rate 10G");
    let receiver = ingest.receiver(&format!("--verify --sink raw:{}", files.path().display()));
    let mut killed = ingest.sender("--rate 100M");
    let index = files.path().join("data.raw");
    // The sink's buffer reaches the file while the stream runs.
    wait_until(|| fs::metadata(&index).is_ok_and(|file| file.len() > 4 << 20));
    killed.signal(libc::SIGKILL);
    killed.wait(LIMIT);
    // The receiver may not have noticed: until then the number is taken.
    let begun = Instant::now();
    loop {
        let again = ingest.sender("--rate 100M --windows 5").finish(LIMIT);
        if again.status.success() {
            break;
        }
        assert!(again.stderr.contains("has a sender already"), "{again}");
        assert!(begun.elapsed() < LIMIT, "{again}");
    }
    let mut running = ingest.sender("--rate 100M");
    let before = fs::metadata(&index).unwrap().len();
    wait_until(|| fs::metadata(&index).is_ok_and(|file| file.len() > before + (4 << 20)));
    receiver.signal(libc::SIGINT);
    let received = json(&receiver.succeed(LIMIT));
    running.wait(LIMIT);
    assert_eq!(received["damaged"], 0, "{received}");
    let present = received["messages"]["present"].as_u64().unwrap();
    assert!(present > 5 * 256, "{received}");
    assert_eq!(present_in_index(files.path()).len() as u64, present, "{received}");
}

fn wait_until(mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < LIMIT, "waited for {LIMIT:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn what_makes_no_sense_is_refused_with_a_sentence() {
    let ingest = Ingest::over("--distance 0km --rate 10G");
    let files = RuntimeDir::new();
    fs::write(files.path().join("bad.toml"), "regions = 12\n").unwrap();
    fs::write(files.path().join("odd.toml"), "slot = 12\n").unwrap();
    let of_file = |name: &str| format!("--config {}", files.path().join(name).display());
    for (options, text) in [
        (of_file("bad.toml"), "12 regions: the number must be a power of two"),
        (of_file("odd.toml"), "unknown field `slot`"),
        (of_file("none.toml"), "No such file"),
        ("--sink guppi:/dev/null/x".into(), "cannot write /dev/null/x"),
        ("--sink hdf5:/dev/null/x".into(), "cannot write /dev/null/x"),
        ("--sink hdf5:/dev/full".into(), "cannot write /dev/full"),
        (of_file("none.toml").replacen("--config", "--header", 1), "No such file"),
        ("--health 192.0.2.1".into(), "cannot answer at --health 192.0.2.1:9187"),
        ("--slots 5000".into(), "5000 slots need more than 12 bits"),
        ("--sink raw:/dev/null/x".into(), "cannot write /dev/null/x"),
        ("--listen 192.0.2.1:1".into(), "cannot listen on 192.0.2.1:1"),
    ] {
        let line = format!("{} ingest receive {options}", program());
        let refused = ingest.lab.exec("a", &line).finish(LIMIT);
        assert!(!refused.status.success() && refused.stderr.contains(text), "{refused}");
    }
    let refused = ingest.sender("").finish(LIMIT);
    assert!(refused.stderr.contains("start 'longhaul ingest receive' there first"), "{refused}");
    let refused = Program::start(&mut files.longhaul("ingest send 127.0.0.1:1")).finish(LIMIT);
    assert!(refused.stderr.contains("run it with 'longhaul exec'"), "{refused}");

    let receiver = ingest.receiver("");
    for (options, text) in [
        ("--stream 1", "stream 1 is unknown: there are 1"),
        ("--blocks 17", "the regions are too small for its windows: 272 messages"),
        ("--rc", "its queue pairs are Rc, and this receiver's Uc"),
    ] {
        let refused = ingest.sender(options).finish(LIMIT);
        assert!(!refused.status.success() && refused.stderr.contains(text), "{refused}");
    }
    receiver.signal(libc::SIGTERM);
    let receiver = receiver.succeed(LIMIT);
    assert_eq!(json(&receiver)["refused"], 3, "{receiver}");
    assert!(receiver.stderr.contains("stream 1 is unknown"), "{receiver}");
}

#[test]
fn a_sink_that_is_full_is_reported_and_stops_nothing() {
    for (sink, file) in
        [("raw", "data.raw"), ("guppi", "stream0.0000.raw"), ("dada", "stream0.0000.dada")]
    {
        let ingest = Ingest::over("--distance 0km --rate 10G");
        let files = RuntimeDir::new();
        std::os::unix::fs::symlink("/dev/full", files.path().join(file)).unwrap();
        let options = format!("--until-idle --sink {sink}:{}", files.path().display());
        let receiver = ingest.receiver(&options);
        ingest.sender("--rate 300M --windows 10").succeed(LIMIT);
        let ended = receiver.finish(LIMIT);
        let received = json(&ended);
        assert!(!ended.status.success(), "{ended}");
        assert_eq!(received["messages"]["present"], 2560, "{ended}");
        assert_eq!(received["unwritten"], 10, "{ended}");
        let failure = received["sink_failure"].as_str().unwrap();
        assert!(failure.contains("No space left on device"), "{ended}");
    }
}

#[test]
fn an_hdf5_file_that_cannot_grow_is_reported_and_stops_nothing() {
    let ingest = Ingest::over("--distance 0km --rate 10G");
    let files = RuntimeDir::new();
    let (limited, path) = (files.path().join("limited.sh"), files.path().join("station.h5"));
    // In KiB; 40 windows have 80 MiB. Without the signal the write fails, as on a full disk.
    fs::write(&limited, "trap '' XFSZ\nulimit -f 32768\nexec \"$@\"\n").unwrap();
    let port = ingest.port;
    let line = format!(
        "bash {} {} ingest receive --json --listen 127.0.0.1:{port} --regions 64 --until-idle \
         --config {} --sink hdf5:{}",
        limited.display(),
        program(),
        ingest.patient.display(),
        path.display()
    );
    let receiver = wait_for_listener(ingest.lab.exec("a", &line), port);
    ingest.sender("--rate 300M --windows 40").succeed(LIMIT);
    let ended = receiver.finish(LIMIT);
    let received = json(&ended);
    assert!(!ended.status.success(), "{ended}");
    assert_eq!(received["messages"]["present"], 40 * 256, "{ended}");
    assert!((20..35).contains(&received["unwritten"].as_u64().unwrap()), "{ended}");
    assert!(received["sink_failure"].as_str().unwrap().contains("File too large"), "{ended}");
}

/// The body of an HTTP answer, and its status line.
fn get(port: u16, path: &str) -> (String, String) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.lines().next().unwrap().to_owned(), body.to_owned())
}

#[test]
fn a_scraper_sees_what_arrives_and_a_probe_what_fails() {
    let ingest = Ingest::over("--distance 10km --rate 10G --loss 1e-2");
    let files = RuntimeDir::new();
    std::os::unix::fs::symlink("/dev/full", files.path().join("data.raw")).unwrap();
    let health = free_tcp_port();
    let (sink, options) = (files.path().display(), "--verify --seconds 600");
    let receiver =
        ingest.receiver(&format!("{options} --health 127.0.0.1:{health} --sink raw:{sink}"));
    assert_eq!(get(health, "/readyz").0, "HTTP/1.1 200 OK");
    let running = ingest.sender("--rate 100M");
    // All figures of one answer: they grow from one to the next.
    let metrics = || get(health, "/metrics").1;
    let sample = |metrics: &str, name: &str| {
        let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{name}: {metrics}")).parse::<f64>().unwrap()
    };
    let of_fate = |metrics: &str, fate: &str| {
        let name = format!("longhaul_ingest_messages{{stream=\"0\",fate=\"{fate}\"}}");
        sample(metrics, &name)
    };
    wait_until(|| {
        let now = metrics();
        of_fate(&now, "lost") > 0.0 && sample(&now, "longhaul_ingest_sink_failed") == 1.0
    });
    let now = metrics();
    let sample = |name: &str| sample(&now, name);
    assert!(of_fate(&now, "present") > of_fate(&now, "lost"));
    assert!(sample("longhaul_ingest_heaps_total") >= of_fate(&now, "present"));
    assert_eq!(sample("longhaul_ingest_senders"), 1.0);
    assert_eq!(sample("longhaul_ingest_regions"), 16.0);
    let batch = sample("longhaul_ingest_max_batch");
    assert!(batch >= 1.0 && sample("longhaul_ingest_batches_total") > 0.0);
    let arrived = sample("longhaul_ingest_lateness_windows_count");
    assert!(arrived > 0.0 && sample("longhaul_ingest_heaps_total") >= arrived);
    let (status, why) = get(health, "/readyz");
    assert!(status.contains("503") && why.contains("No space left on device"), "{why}");
    assert_eq!(get(health, "/healthz").0, "HTTP/1.1 200 OK");
    let state: Value = serde_json::from_str(&get(health, "/state").1).unwrap();
    assert_eq!((&state["damaged"], state["arrivals"].as_u64() > Some(0)), (&0.into(), true));
    receiver.signal(libc::SIGINT);
    receiver.finish(LIMIT);
    running.finish(LIMIT);
}

/// Runs a script of Python that needs `module` on `file`; skips loudly without the module.
fn read_by(module: &str, script: &str, file: &Path) -> Option<String> {
    let run = |arguments: &[&OsStr]| Command::new(python()).args(arguments).output().unwrap();
    if !run(&["-c".as_ref(), format!("import {module}").as_ref()]).status.success() {
        skip(format!("Python's {module} is not installed"));
        return None;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("python").join(script);
    let out = run(&[script.as_ref(), file.as_ref()]);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    Some(String::from_utf8(out.stdout).unwrap())
}

/// Receives 20 windows with gaps and losses in `sink`. Returns the receiver's summary.
fn observe(sink: &str, header: &str) -> Value {
    let files = RuntimeDir::new();
    let path = files.path().join("observation.toml");
    fs::write(&path, header).unwrap();
    let ingest = Ingest::over("--distance 10km --rate 10G --loss 1e-2");
    let receiver = ingest.receiver(&format!("{ROOMY} --header {} --sink {sink}", path.display()));
    ingest.sender("--rate 200M --windows 20 --gap 0.05").succeed(LIMIT);
    json(&receiver.succeed(LIMIT))
}

#[test]
fn h5py_reads_what_the_hdf5_sink_wrote() {
    let files = RuntimeDir::new();
    let path = files.path().join("station.h5");
    let received =
        observe(&format!("hdf5:{}", path.display()), "TELESCOP = \"LOFAR\"\nOBSFREQ = 150.5\n");
    let Some(counts) = read_by("h5py", "ingest_hdf5.py", &path) else { return };
    let counts: Value = serde_json::from_str(&counts).unwrap();
    // What was late changed its fate after its window was written.
    assert_eq!(counts["present"], received["messages"]["present"], "{received}");
    assert_eq!(counts["never_sent"], received["messages"]["never_sent"], "{received}");
}

#[test]
fn blimpy_reads_what_the_guppi_sink_wrote() {
    let files = RuntimeDir::new();
    let header = "OBSNCHAN = 16\nNPOL = 4\nNBITS = 8\nOBSFREQ = 1420.0\nTBIN = 1e-6\n";
    let received = observe(&format!("guppi:{}", files.path().display()), header);
    let file = files.path().join("stream0.0000.raw");
    let Some(found) = read_by("blimpy.guppi", "ingest_guppi.py", &file) else { return };
    let found: Value = serde_json::from_str(found.lines().last().unwrap()).unwrap();
    let missing = 20 * 256 - received["messages"]["present"].as_u64().unwrap();
    let indices: Vec<u64> = (0..20).map(|window| window * 256).collect();
    assert_eq!(found, serde_json::json!([20, missing, indices]), "{received}");
}

#[test]
fn a_file_tells_a_sender_in_hardware_where_to_write() {
    let files = RuntimeDir::new();
    let (config, told) = (files.path().join("station.toml"), files.path().join("told.json"));
    let sender = "[[senders]]\nstream = 0\naddress = \"10.77.0.2\"\nqueue_pairs = [";
    let ends = "{ qpn = 17, psn = 0 }, { qpn = 18, psn = 5 }]\n";
    fs::write(&config, format!("{sender}{ends}")).unwrap();
    let ingest = Ingest::over("--distance 0km --rate 10G");
    let receiver = ingest.receiver_by(&config, &format!("--static {}", told.display()));
    let options = format!("--config {} --static {}", config.display(), told.display());
    let file = eventually_json(&told);
    let stream = &file["static"][0];
    assert_eq!((&file["longhaul_ingest"], &stream["udp_port"]), (&1.into(), &4791.into()));
    assert_eq!(stream["gid"], "::ffff:10.77.0.1", "{file}");
    assert_eq!(stream["mac"].as_str().map(str::len), Some(17), "{file}");
    assert_eq!(stream["regions"].as_array().map(Vec::len), Some(16), "{file}");
    assert_eq!(stream["queue_pairs"].as_array().map(Vec::len), Some(2), "{file}");
    assert_eq!(stream["sender_queue_pairs"][1], serde_json::json!({ "qpn": 18, "psn": 5 }));
    let refused = ingest.sender("").finish(LIMIT);
    assert!(refused.stderr.contains("has a sender already"), "{refused}");
    receiver.signal(libc::SIGINT);
    receiver.succeed(LIMIT);

    let idle = format!("{} ingest receive {options} --until-idle", program());
    let refused = ingest.lab.exec("a", &idle).finish(LIMIT);
    assert!(refused.stderr.contains("use --windows or --seconds"), "{refused}");
    fs::write(&config, format!("{sender}]\n")).unwrap();
    let line = format!("{} ingest receive --listen 127.0.0.1:0 {options}", program());
    let refused = ingest.lab.exec("a", &line).finish(LIMIT);
    assert!(refused.stderr.contains("0 queue pairs: from 1 to 256 are possible"), "{refused}");
    fs::write(&config, "").unwrap();
    let refused = ingest.lab.exec("a", &line).finish(LIMIT);
    assert!(refused.stderr.contains("the configuration has no senders for --static"), "{refused}");
}

/// A capture of UDP packets to port 7148 with these payloads, 100 us apart.
fn capture_of(payloads: &[Vec<u8>]) -> Vec<u8> {
    let mut file = pcap::file_header(pcap::LinkType::ETHERNET, 65_535).to_vec();
    for (number, payload) in (0_u64..).zip(payloads) {
        let udp_len = (8 + payload.len()) as u16;
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0];
        frame.extend((20 + udp_len).to_be_bytes());
        frame.extend([0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0, 9]);
        frame.extend(7148_u16.to_be_bytes());
        frame.extend(udp_len.to_be_bytes());
        frame.extend([0, 0]);
        frame.extend(payload);
        let (timestamp_ns, len) = (number * 100_000, frame.len() as u32);
        let header = pcap::RecordHeader { timestamp_ns, captured_len: len, original_len: len };
        file.extend(header.write());
        file.extend(frame);
    }
    file
}

#[test]
fn a_capture_is_replayed_and_reported() {
    let files = RuntimeDir::new();
    let (capture, sink) = (files.path().join("station.pcap"), files.path().join("sink"));
    let payloads: Vec<Vec<u8>> =
        (0..200_u32).map(|number| number.to_be_bytes().repeat(300)).collect();
    fs::write(&capture, capture_of(&payloads)).unwrap();
    let report = files.path().join("report.html");
    let ingest = Ingest::over("--distance 10km --rate 10G");
    let receiver = ingest.receiver(&format!(
        "--slots 64 --message 1200 --until-idle --sink raw:{} --report {}",
        sink.display(),
        report.display()
    ));
    let options = format!("--subbands 8 --blocks 8 --replay {}", capture.display());
    let sent = json(&ingest.sender(&format!("{options} --port 7148")).succeed(LIMIT));
    let received = json(&receiver.succeed(LIMIT));
    assert_eq!((&sent["messages"], &sent["unsent"]), (&200.into(), &56.into()));
    assert!(sent["elapsed_s"].as_f64().unwrap() >= 0.0199, "{sent}");
    assert_eq!(received["messages"]["present"], 200, "{received}");
    assert_eq!(received["messages"]["never_sent"], 56, "{received}");
    let data = fs::read(sink.join("data.raw")).unwrap();
    assert!(data.chunks(1200).zip(&payloads).all(|(message, payload)| message == payload));
    let presence = &received["presence"];
    assert_eq!(presence["windows_per_column"], 1, "{received}");
    assert_eq!(presence["streams"][0], serde_json::json!([1.0, 1.0, 1.0, 0.125]), "{received}");
    let page = fs::read_to_string(&report).unwrap();
    assert!(
        page.contains("<svg role=\"img\" aria-label=\"Messages present, by station and window")
    );
    let refused = ingest.sender(&format!("{options} --port 53")).finish(LIMIT);
    assert!(refused.stderr.contains("no whole UDP packet to port 53"), "{refused}");
}
