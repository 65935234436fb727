//! `longhaul sim`: scenario files, its output, captures for other programs, and invalid input.

use longhaul_checks::{Finished, Program, RuntimeDir, require};
use longhaul_wire::pcap;
use serde_json::Value;
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(300);

/// 380 km, both boxes, some losses.
const SCENARIO: &str = r#"
name = "check"
seed = 3
[path]
distance = "380km"
rate = "100G"
loss = 1e-4
accelerators = "both"
[[flow]]
op = "write"
size = "64K"
iterations = 400
"#;

/// A directory with the scenario in `x.toml`, in which programs run.
struct Place {
    runtime: RuntimeDir,
}

impl Place {
    fn new(scenario: &str) -> Self {
        let runtime = RuntimeDir::new();
        fs::write(runtime.path().join("x.toml"), scenario).unwrap();
        Place { runtime }
    }

    fn command(&self, arguments: &str) -> Command {
        self.runtime.longhaul_inside(arguments)
    }

    fn run(&self, arguments: &str) -> Finished {
        Program::start(&mut self.command(arguments)).finish(LIMIT)
    }

    fn succeed(&self, arguments: &str) -> String {
        Program::start(&mut self.command(arguments)).succeed(LIMIT).stdout
    }

    fn json(&self, arguments: &str) -> Value {
        serde_json::from_str(&self.succeed(arguments)).unwrap()
    }

    fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.runtime.path().join(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
    }

    fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(self.runtime.path()).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }
}

mod a_run {
    use super::*;

    #[test]
    fn of_the_example_tells_of_flows_links_and_boxes() {
        let place = Place::new("");
        let example = place.succeed("sim --example");
        fs::write(place.runtime.path().join("example.toml"), example).unwrap();
        let text = place.succeed("sim example.toml");
        for part in [
            "example: ",
            "flow1",
            "write 64 KiB",
            "Gbit/s",
            "lan-a",
            "wan",
            "accelerator near",
            "host b",
        ] {
            assert!(text.contains(part), "{part:?} is missing:\n{text}");
        }
    }

    #[test]
    fn is_the_same_to_the_byte_on_one_thread_and_on_two() {
        let place = Place::new(SCENARIO);
        let outputs = [1, 2].map(|threads| {
            let printed = place
                .succeed(&format!("sim x.toml --json --threads {threads} --pcap-dir d{threads}"));
            let segments = ["lan-a@a", "lan-a@near", "wan@near", "wan@far", "lan-b@far", "lan-b@b"];
            (printed, segments.map(|name| place.read(&format!("d{threads}/{name}.pcap"))))
        });
        assert!(outputs[0].1.iter().all(|capture| capture.len() > 100_000));
        assert!(outputs[0] == outputs[1], "{}", outputs[1].0);
        let other = place.succeed("sim x.toml --json --seed 4");
        assert!(other != outputs[0].0, "another seed loses other packets");
    }

    #[test]
    fn is_changed_by_what_is_set_and_leaves_a_result() {
        let place = Place::new(SCENARIO);
        let goodput = |more: &str| {
            let arguments = format!("sim x.toml --json --out r.jsonl --set path.loss=0 {more}");
            place.json(&arguments)["outcome"]["flows"][0]["goodput_bps"].as_f64().unwrap()
        };
        let near = goodput("--set path.accelerators=none --set path.distance=100m");
        let far = goodput("--set path.accelerators=none --set path.distance=1000km");
        assert!(near > 10.0 * far, "{near} {far}");
        let lines = String::from_utf8(place.read("r.jsonl")).unwrap();
        let records: Vec<Value> =
            lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(records.len(), 2);
        assert_eq!(
            (&records[1]["experiment"], &records[1]["source"]),
            (&"check".into(), &"simulated".into())
        );
        assert_eq!(records[1]["point"]["path.distance_m"], 1_000_000);
        assert_eq!(records[1]["values"]["goodput_bps"].as_f64(), Some(far));
        assert_eq!(records[1]["provenance"]["seed"], 3);
    }

    #[test]
    fn that_is_interrupted_says_what_there_is() {
        let endless = SCENARIO.replace("iterations = 400", "iterations = 1000000000");
        let place = Place::new(&endless);
        let mut command = place.command("sim x.toml");
        let mut program = Program::start_group(&mut command);
        // Its last handler.
        program.wait_for_handler(libc::SIGTERM, LIMIT);
        program.interrupt_group();
        let ended = program.finish(LIMIT);
        assert_eq!(ended.status.code(), Some(130), "{ended}");
        assert!(ended.stdout.contains("not all flows ended: stopped"), "{ended}");
    }

    #[test]
    fn whose_flow_connects_tells_how_long_that_took() {
        let place = Place::new(SCENARIO);
        let arguments = "sim x.toml --set flow.connect=cm --set flow.qps=4 --set path.loss=0";
        let text = place.succeed(arguments);
        assert!(text.contains("mean set-up") && text.contains("3.801 ms"), "{text}");
        let flow =
            place.json(&format!("{arguments} --json --out r.jsonl"))["outcome"]["flows"][0].clone();
        let slowest = flow["setup"]["max_ns"].as_f64().unwrap();
        assert!((3.8e6..3.81e6).contains(&slowest), "{flow}");
        let record: Value = serde_json::from_slice(&place.read("r.jsonl")).unwrap();
        assert_eq!(record["values"]["setup_max_ns"].as_f64(), Some(slowest));
        assert_eq!(record["values"]["setup_mean_ns"], flow["setup"]["mean_ns"]);
        let ended = place.run("sim x.toml --set flow.connect=cm --set flow.listen=false");
        assert_eq!(ended.status.code(), Some(1), "{ended}");
        let cause = "flow flow1 failed: 0 of 1 QPs were connected: the responder rejected the \
                     request: invalid service id: nobody listens (8)";
        assert!(ended.stdout.contains(cause), "{ended}");
    }

    #[test]
    fn whose_flow_fails_says_so() {
        let place = Place::new(&SCENARIO.replace("1e-4", "1").replace("\"both\"", "\"none\""));
        let ended = place.run("sim x.toml");
        assert_eq!(ended.status.code(), Some(1), "{ended}");
        assert!(ended.stdout.contains("flow flow1 failed: "), "{ended}");
    }
}

mod captures {
    use super::*;

    fn frames(capture: &[u8]) -> Vec<(u64, usize)> {
        let records = pcap::records(capture).map(|record| record.expect("a record"));
        records.map(|record| (record.timestamp_ns.expect("a time"), record.original_len)).collect()
    }

    #[test]
    fn at_both_ends_show_what_left_and_what_arrived_in_the_order_of_time() {
        let place = Place::new(SCENARIO);
        let outcome =
            place.json("sim x.toml --json --pcap wan@near=near.pcap --pcap wan@far=far.pcap");
        let (near, far) = (frames(&place.read("near.pcap")), frames(&place.read("far.pcap")));
        for frames in [&near, &far] {
            assert!(frames.is_sorted_by_key(|(at, _)| *at));
        }
        let wires = outcome["outcome"]["wires"].as_array().unwrap();
        let entered = |from: &str, to: &str| {
            let wire =
                wires.iter().find(|wire| wire["from"] == from && wire["to"] == to).expect("a wire");
            (wire["entered_frames"].as_u64().unwrap(), wire["lost_frames"].as_u64().unwrap())
        };
        let ((forth, lost), (back, lost_back)) = (entered("near", "far"), entered("far", "near"));
        assert!(lost > 0, "{outcome}");
        assert_eq!(near.len() as u64, forth + back - lost_back);
        assert_eq!(far.len() as u64, forth - lost + back);
        assert!(far[0].0 - near[0].0 >= 1_900_000, "the way takes 1.9 ms");
        assert_eq!(place.files(), ["far.pcap", "near.pcap", "x.toml"]);
    }

    #[test]
    fn are_read_by_tshark() {
        require("tshark", "tshark");
        let place = Place::new(SCENARIO);
        place.succeed("sim x.toml --set flow.iterations=20 --pcap lan-a=a.pcap --snap-len 65535");
        let mut tshark = Command::new("tshark");
        tshark.current_dir(place.runtime.path()).args(["-n", "-r", "a.pcap", "-T", "fields"]);
        for guess in ["rpcordma", "nvme-rdma", "smb_direct", "iser", "rpc"] {
            tshark.args(["--disable-protocol", guess]);
        }
        for field in ["_ws.malformed", "infiniband.bth.opcode", "infiniband.reth.dmalen"] {
            tshark.args(["-e", field]);
        }
        let text = Program::start(&mut tshark).succeed(LIMIT).stdout;
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split('\t').collect()).collect();
        assert!(lines.iter().all(|fields| fields[0].is_empty()), "{text}");
        // The first packet of each WRITE, and its length.
        let firsts: Vec<_> = lines.iter().filter(|fields| fields[1] == "6").collect();
        assert_eq!(firsts.len(), 20, "{text}");
        assert!(firsts.iter().all(|fields| fields[2] == "65536"), "{text}");
        assert!(lines.iter().any(|fields| fields[1] == "17"), "acknowledgements:\n{text}");
    }

    #[test]
    fn show_connections_set_up_and_ended_to_tshark_and_to_the_doctor() {
        require("tshark", "tshark");
        let place = Place::new(SCENARIO);
        place.succeed(
            "sim x.toml --set flow.connect=cm --set flow.iterations=20 --pcap lan-a=a.pcap",
        );
        let mut tshark = Command::new("tshark");
        tshark.current_dir(place.runtime.path()).args([
            "-n",
            "-r",
            "a.pcap",
            "-Y",
            "infiniband.mad",
        ]);
        tshark.args(["-T", "fields", "-e", "_ws.malformed", "-e", "_ws.col.Info"]);
        let text = Program::start(&mut tshark).succeed(LIMIT).stdout;
        let messages = [
            "ConnectRequest",
            "ConnectReply",
            "ReadyToUse",
            "DisconnectRequest",
            "DisconnectReply",
        ];
        assert_eq!(
            text.lines().collect::<Vec<_>>(),
            messages.map(|message| format!("\tCM: {message}"))
        );
        let report = place.succeed("doctor a.pcap");
        for part in [
            "1 request, 1 reply, 1 disconnection, 0 rejections",
            "set up by the connection manager",
        ] {
            assert!(report.contains(part), "{part:?} is missing:\n{report}");
        }
    }

    #[test]
    fn are_explained_by_the_doctor() {
        let place = Place::new(SCENARIO);
        place.succeed(
            "sim x.toml --set path.accelerators=none --set path.loss=0 --pcap wan=a.pcap \
             --pcap wan@b=b.pcap",
        );
        let report = |name: &str| place.json(&format!("doctor --json {name}"));
        let at_requester = report("a.pcap");
        let flow = &at_requester["flows"][0];
        let text = place.succeed("doctor a.pcap");
        assert!(text.contains("400 WRITE of 64 KiB"), "{text}");
        // Near the requester answers take the whole round trip; near the responder next to nothing.
        assert!(text.contains("min 3.8 ms"), "{text}");
        assert!(!place.succeed("doctor b.pcap").contains("min 3.8 ms, median 3.8 ms"), "{flow}");
        assert!(text.contains("The queue depth limits it: 128 messages"), "{text}");
    }

    #[test]
    fn that_cannot_be_made_or_written_are_named() {
        let place = Place::new(SCENARIO);
        for (arguments, code, part) in [
            ("sim x.toml --pcap wan", 2, "--pcap wan: write LINK=FILE"),
            (
                "sim x.toml --pcap man=x.pcap",
                2,
                "no link is called 'man': the links are lan-a, lan-b, wan",
            ),
            (
                "sim x.toml --pcap wan@a=x.pcap",
                2,
                "link 'wan' does not end at 'a', but at near and far",
            ),
            ("sim x.toml --pcap wan=x.pcap --pcap lan-a=x.pcap", 2, "two captures go to x.pcap"),
            ("sim x.toml --pcap wan=x.toml/x.pcap", 1, "x.toml"),
        ] {
            let refused = place.run(arguments);
            assert_eq!(refused.status.code(), Some(code), "{refused}");
            assert!(refused.stderr.contains(part), "{refused}");
        }
        let mut full = Command::new("bash");
        let longhaul = longhaul_checks::longhaul();
        let script = format!(
            "ulimit -f 64; trap '' XFSZ; exec {} sim x.toml --pcap wan=w.pcap",
            longhaul.display()
        );
        full.current_dir(place.runtime.path()).args(["-c", &script]).process_group(0);
        let ended = Program::start(&mut full).finish(LIMIT);
        assert_eq!(ended.status.code(), Some(1), "{ended}");
        assert!(ended.stderr.contains("cannot record to w.pcap: File too large"), "{ended}");
        assert!(ended.stdout.contains("flow1"), "the outcome is there all the same: {ended}");
    }
}

mod bad_input {
    use super::*;

    /// Checks that stderr alone has one line, which contains `part`, and that the exit code is 2.
    #[track_caller]
    fn assert_refused(refused: &Finished, part: &str) {
        assert_eq!(refused.status.code(), Some(2), "{refused}");
        assert_eq!((&*refused.stdout, refused.stderr.lines().count()), ("", 1), "{refused}");
        assert!(refused.stderr.contains(part), "{part:?} is missing: {refused}");
    }

    #[test]
    fn in_a_file_is_named_with_its_line() {
        for (from, to, part) in [
            (
                "distance",
                "distnace",
                "x.toml:5: 'distnace' in [path] is not known; did you mean 'distance'?",
            ),
            ("\"380km\"", "\"-5km\"", "x.toml:5: distance in [path]"),
            ("\"380km\"", "\"90000km\"", "longer than 80000 km"),
            ("\"100G\"", "0", "x.toml:6: rate in [path]: 0 is out of range"),
            ("1e-4", "2", "x.toml:7: loss"),
            ("[[flow]]", "[[flows]]", "x.toml:9: 'flows' is not known; did you mean 'flow'?"),
            ("size = \"64K\"", "to = \"c\"", "none of the hosts a, b"),
            ("[path]", "[path", "x.toml:4: "),
        ] {
            assert!(SCENARIO.contains(from));
            assert_refused(&Place::new(&SCENARIO.replacen(from, to, 1)).run("sim x.toml"), part);
        }
    }

    #[test]
    fn on_the_command_line_is_named_too() {
        let place = Place::new(SCENARIO);
        for (arguments, part) in [
            ("sim", "FILE"),
            ("sim y.toml", "cannot read y.toml"),
            ("sim x.toml --set flow.size", "write KEY=VALUE"),
            ("sim x.toml --set flow.sice=1", "did you mean 'size'?"),
            ("sim x.toml --set link.rate=1G", "x.toml has no link; it has path, flow"),
            ("sim x.toml --set path.nic=conectx6", "did you mean 'connectx6'?"),
            ("sim x.toml --set path.nic=mine.toml", "mine.toml: No such file"),
            ("sim x.toml --threads 0", "--threads"),
            ("sim x.toml --snap-len 5", "--snap-len"),
        ] {
            assert_refused(&place.run(arguments), part);
        }
        assert_eq!(place.files(), ["x.toml"]);
    }
}
