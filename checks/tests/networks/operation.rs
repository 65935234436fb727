//! Operation of `longhaul accelerate` while it runs: configuration changes, draining, health and
//! metrics, the live view. Skipped, loudly, if namespaces cannot be created.

use longhaul_checks::network::{LIMIT, Network, RIGHT, RunningBox};
use longhaul_checks::{Finished, Program, require};
use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

fn finish(network: &Network, arguments: &str) -> Finished {
    Program::start(&mut network.runtime.longhaul(arguments)).finish(LIMIT)
}

fn succeed(network: &Network, arguments: &str) -> Finished {
    Program::start(&mut network.runtime.longhaul(arguments)).succeed(LIMIT)
}

/// Starts a box whose configuration file, in the directory of `network`, contains `text`.
fn start_with_file(network: &Network, name: &str, text: &str) -> RunningBox {
    write_file(network, name, text);
    let file = network.runtime.path().join(name).with_extension("toml");
    network
        .start(&format!("accelerate --name {name} --keep-privileges --config {}", file.display()))
}

fn write_file(network: &Network, name: &str, text: &str) {
    let file = network.runtime.path().join(name).with_extension("toml");
    fs::write(file, text).expect("a file");
}

fn near(settings: &str) -> String {
    format!("[[pair]]\nname = 'path'\nlan = 'west'\nwan = 'w1'\n{settings}\n")
}

fn path(network: &Network) -> [RunningBox; 2] {
    [
        network.start("emulate --a w2 --b e2 --distance 1000km --rate 1G"),
        network.start("accelerate --name far --lan east --wan e1 --rate 1G --distance 1000km"),
    ]
}

/// Waits until a box is ready. A thread that waits long for a processor counts as stuck.
fn becomes_ready(network: &Network, name: &str) {
    let deadline = Instant::now() + LIMIT;
    loop {
        let health = finish(network, &format!("box health {name}"));
        if health.status.success() {
            return assert_eq!(health.stdout, "ready\n");
        }
        assert!(Instant::now() < deadline, "{health}");
        thread::sleep(Duration::from_millis(50));
    }
}

fn mode_of_first_flow(status: &Value) -> Value {
    status["pairs"][0]["accelerator"]["flows"][0]["mode"].clone()
}

fn stored(status: &Value) -> u64 {
    status["pairs"][0]["accelerator"]["stored_bytes"].as_u64().expect("bytes")
}

mod another_configuration {
    use super::*;

    #[test]
    fn holds_for_flows_that_come_and_not_for_those_under_way() {
        require("ib_write_bw", "perftest");
        let Some(network) = Network::new("another configuration", 1500) else { return };
        let settings = "rate = '1G'\ndistance = '1000km'";
        let near_box = start_with_file(&network, "near", &near(settings));
        let others = path(&network);
        // Each runs for seconds, so that it still has a flow when the box is asked.
        network.transfer("ib_write_bw -R -s 65536 -m 1024 -n 15000", || {
            network.wait_for(&near_box, "a flow", |status| stored(status) > 0);
            write_file(
                &network,
                "near",
                &near(&format!("{settings}\nmode = 'tail'\nwindow = '8M'")),
            );
            let done = succeed(&network, "box reload --box near");
            assert_eq!(done.stdout, "changed: pair path: window, pair path: mode\n", "{done}");
            assert_eq!(mode_of_first_flow(&network.status(&near_box)), "early");
        });
        assert!(succeed(&network, "box reload --box near").stdout.contains("nothing differs"));
        network.transfer("ib_write_bw -R -s 65536 -m 1024 -n 8000", || {
            network.wait_for(&near_box, "a flow in mode tail", |status| {
                let flows = status["pairs"][0]["accelerator"]["flows"].as_array().expect("flows");
                flows.iter().any(|flow| flow["mode"] == "tail")
            });
        });
        let ended = near_box.end();
        assert!(ended.stderr.contains("changed: pair path: window, pair path: mode"), "{ended}");
        others.into_iter().for_each(|one| drop(one.end()));
    }

    #[test]
    fn by_a_signal_is_told_in_the_journal() {
        let Some(network) = Network::new("a configuration by SIGHUP", 1500) else { return };
        let mut near_box = start_with_file(&network, "near", &near(""));
        write_file(&network, "near", &near("give_up = '5s'"));
        near_box.signal(libc::SIGHUP);
        // Two simultaneous signals of a kind are one.
        near_box.program.wait_for_output("changed: pair path: give_up", LIMIT);
        write_file(&network, "near", &near("give_up = '5 parsecs'"));
        near_box.signal(libc::SIGHUP);
        near_box.program.wait_for_output("cannot apply the configuration: ", LIMIT);
        near_box.end();
    }

    #[test]
    fn is_told_in_json_where_that_is_wanted() {
        let Some(network) = Network::new("a journal in JSON", 1500) else { return };
        let text = format!("log = 'json'\n{}", near(""));
        let mut near_box = start_with_file(&network, "near", &text);
        near_box.signal(libc::SIGUSR1);
        near_box.program.wait_for_output("\"state\":", LIMIT);
        write_file(&network, "near", &format!("log = 'json'\n{}", near("mode = 'off'")));
        succeed(&network, "box reload");
        near_box.program.wait_for_output("changed: pair path: mode", LIMIT);
        let ended = near_box.end();
        let lines: Vec<Value> =
            ended.stderr.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        let has = |key: &str, text: &str| {
            lines.iter().any(|line| line[key].as_str().is_some_and(|t| t.contains(text)))
        };
        assert!(
            lines.iter().all(|line| line["box"] == "near" && line["time"].is_string()),
            "{ended}"
        );
        assert!(
            has("message", "changed: pair path: mode") && has("message", "ending on a signal"),
            "{ended}"
        );
        assert!(has("pair", "path") && has("level", "info"), "{ended}");
        assert!(lines.iter().any(|line| line["state"]["pairs"][0]["name"] == "path"), "{ended}");
    }

    #[test]
    fn that_cannot_be_changes_nothing_and_the_box_goes_on() {
        let Some(network) = Network::new("a configuration that cannot be", 1500) else { return };
        let near_box = start_with_file(&network, "near", &near("mode = 'tail'"));
        let other = network.start("emulate --a w2 --b east");
        for (text, part) in [
            (near("mode = 'fast'"), "'fast' is no mode: say early, far, tail or off"),
            (
                near("mode = 'off'\nflows = 7"),
                "needs a restart: pair path: flows; restore it, or restart",
            ),
            (near("transport = true"), "needs a restart: pair path: transport"),
            ("[[pair]]\nname = 'path'\nlan = 'west'\nwan = 'w9'\n".into(), "wan is w9 and was w1"),
            (
                near("memory = '64K'\n[[pair]]\nlan = 'x'\nwan = 'y'"),
                "the pairs are path, x-y and were path",
            ),
            (format!("user = 'daemon'\n{}", near("")), "needs a restart: user"),
            (
                format!(
                    "{}[[policy]]\nsource = '10.0.0.0/8'\nmode = 'off'\n[[policy]]\n\
                     source = '10.1.0.0/16'\n\
                     mode = 'early'\n",
                    near("")
                ),
                "policy rule 2: it says 'early', but rule 1",
            ),
            ("[[pair".into(), ".toml:1: "),
        ] {
            write_file(&network, "near", &text);
            let done = finish(&network, "box reload --box near");
            assert_eq!(done.status.code(), Some(1), "{text}: {done}");
            assert!(
                done.stderr.contains(part) && done.stderr.lines().count() == 1,
                "{part}: {done}"
            );
        }
        fs::remove_file(network.runtime.path().join("near.toml")).expect("removed");
        let done = finish(&network, "box reload --box near");
        assert!(
            done.stderr.contains("cannot read ") && done.stderr.contains("near.toml"),
            "{done}"
        );
        network.round_trip(RIGHT, 64, 2);
        let done = finish(&network, "box reload --box emulate");
        assert!(done.stderr.contains("started without --config"), "{done}");
        near_box.end();
        other.end();
    }
}

mod draining {
    use super::*;

    #[test]
    fn ends_while_a_program_runs_and_the_box_can_be_exchanged_under_it() {
        require("ib_write_bw", "perftest");
        let Some(network) = Network::new("a box that is exchanged", 1500) else { return };
        let start = |network: &Network| {
            network.start("accelerate --name near --lan west --wan w1 --rate 1G --distance 1000km")
        };
        let mut near_box = Some(start(&network));
        let others = path(&network);
        // Eight seconds, so that it still runs when the flow passes.
        network.transfer("ib_write_bw -R -s 65536 -m 1024 -n 15000", || {
            let drained = near_box.take().expect("it runs");
            network.wait_for(&drained, "a full store", |status| stored(status) > 1 << 20);
            let done = succeed(&network, "accelerate drain near --timeout 60s");
            assert_eq!(done.stdout, "drained: the stores are empty\n", "{done}");
            assert!(done.stderr.contains(" bytes stored, in 1 flow\n"), "{done}");
            let status = network.status(&drained);
            assert_eq!(
                status["pairs"][0]["accelerator"]["flows"][0]["state"], "passing",
                "{status:#}"
            );
            assert_eq!(
                status["pairs"][0]["accelerator"]["counters"]["stored_lost"], 0,
                "{status:#}"
            );
            let ended = drained.end();
            assert!(ended.stdout.contains("draining, 0 B stored"), "{ended}");
            near_box = Some(start(&network));
        });
        near_box.expect("it runs again").end();
        others.into_iter().for_each(|one| drop(one.end()));
    }

    #[test]
    fn is_undone_and_flows_are_taken_in_again() {
        require("ib_write_bw", "perftest");
        let Some(network) = Network::new("draining that is undone", 1500) else { return };
        let near_box =
            network.start("accelerate --name near --lan west --wan w1 --rate 1G --distance 1000km");
        let others = path(&network);
        succeed(&network, "box drain near");
        let health = finish(&network, "box health near");
        assert_eq!(health.status.code(), Some(1), "{health}");
        assert!(health.stderr.contains("pair west-w1: draining, 0 B stored"), "{health}");
        network.transfer("ib_write_bw -R -s 65536 -m 1024 -n 50", || {});
        let counters = &network.status(&near_box)["pairs"][0]["accelerator"]["counters"];
        assert_eq!(counters["stored_packets"], 0, "{counters:#}");
        assert!(counters["passed_draining"].as_u64() > Some(50 * 64), "{counters:#}");
        succeed(&network, "accelerate drain near --undo");
        becomes_ready(&network, "near");
        network.transfer("ib_write_bw -R -s 65536 -m 1024 -n 50", || {});
        let counters = &network.status(&near_box)["pairs"][0]["accelerator"]["counters"];
        assert!(counters["stored_packets"].as_u64() > Some(0), "{counters:#}");
        near_box.end();
        others.into_iter().for_each(|one| drop(one.end()));
    }

    #[test]
    fn that_cannot_end_names_the_flows_that_hold_data() {
        require("ib_write_bw", "perftest");
        let Some(network) = Network::new("draining without a path", 1500) else { return };
        let near_box = network.start(
            "accelerate --name near --lan west --wan w1 --rate 1G --distance 1000km --give-up 300s",
        );
        let others = path(&network);
        // Ten seconds, so that it is still running when the path is down.
        network.transfer("ib_write_bw -R -s 65536 -m 1024 -n 20000", || {
            network.wait_for(&near_box, "a full store", |status| stored(status) > 1 << 20);
            network.middle.set("link set w2 down");
            let done = finish(&network, "accelerate drain near --timeout 300ms");
            assert_eq!(done.status.code(), Some(3), "{done}");
            assert!(done.stderr.contains("'near' keeps draining"), "{done}");
            assert!(done.stderr.contains("  10.99.0.1 to 10.99.0.2 QP 0x"), "{done}");
            network.middle.set("link set w2 up");
            succeed(&network, "accelerate drain near --timeout 60s");
        });
        near_box.end();
        others.into_iter().for_each(|one| drop(one.end()));
    }

    #[test]
    fn is_for_boxes_with_flows() {
        let Some(network) = Network::new("a fibre to drain", 1500) else { return };
        let fibre = network.start("emulate --a west --b east");
        let done = finish(&network, "accelerate drain emulate");
        assert!(done.stderr.contains("'emulate' has no flows to drain"), "{done}");
        fibre.end();
        let done = finish(&network, "accelerate drain");
        assert!(done.stderr.contains("no box is running here; start one"), "{done}");
    }
}

mod health {
    use super::*;

    /// Response of the box in `network` to GET of `path`: status code and body.
    fn get(network: &Network, path: &str) -> (u16, String) {
        let text = network.middle.inside(|| {
            let mut stream = TcpStream::connect("127.0.0.1:9187").expect("it answers by HTTP");
            stream.set_read_timeout(Some(LIMIT)).expect("a timeout");
            write!(stream, "GET {path} HTTP/1.1\r\nHost: box\r\n\r\n").expect("written");
            let mut text = String::new();
            stream.read_to_string(&mut text).expect("an answer");
            text
        });
        let code = text.split(' ').nth(1).and_then(|code| code.parse().ok());
        let body = text.split_once("\r\n\r\n").map(|(_, body)| body.to_owned());
        (code.expect("a code"), body.expect("a body"))
    }

    fn wait_for_code(network: &Network, path: &str, code: u16) -> String {
        let deadline = Instant::now() + LIMIT;
        loop {
            let (came, body) = get(network, path);
            if came == code {
                return body;
            }
            assert!(Instant::now() < deadline, "{path} stays {came}: {body}");
            thread::sleep(Duration::from_millis(50));
        }
    }

    #[test]
    fn by_http_says_what_is_wrong_and_what_was_counted() {
        let Some(network) = Network::new("health by HTTP", 1500) else { return };
        let near_box = network.start("accelerate --lan west --wan east --health 127.0.0.1:9187");
        assert_eq!(wait_for_code(&network, "/healthz", 200), "ok\n");
        wait_for_code(&network, "/readyz", 200);
        network.right.set("link set eth0 down");
        let why = wait_for_code(&network, "/readyz", 503);
        assert_eq!(why, "pair west-east: wan port east is down\n");
        wait_for_code(&network, "/healthz", 200);
        network.right.set("link set eth0 up");
        wait_for_code(&network, "/readyz", 200);
        succeed(&network, "accelerate drain");
        assert!(wait_for_code(&network, "/readyz", 503).contains("draining, 0 B stored"));
        let (code, metrics) = get(&network, "/metrics");
        assert_eq!(code, 200);
        assert!(metrics.contains(
            "longhaul_accelerator_draining\
             {box=\"accelerate\",pair=\"west-east\",half=\"requesters\"} 1\n"
        ));
        for line in metrics.lines().filter(|line| !line.starts_with('#')) {
            let name = line.split('{').next().unwrap_or_default();
            assert!(metrics.contains(&format!("# HELP {name} ")), "{line}");
            assert!(metrics.contains(&format!("# TYPE {name} ")), "{line}");
        }
        let state: Value = serde_json::from_str(&get(&network, "/state").1).expect("JSON");
        assert_eq!(state["name"], "accelerate");
        assert_eq!(get(&network, "/").0, 404);
        near_box.end();
    }

    #[test]
    fn needs_the_far_box_where_there_is_a_transport() {
        require("ib_write_bw", "perftest");
        let Some(network) = Network::new("health of whole boxes", 1500) else { return };
        let start = |name: &str, ports: &str| {
            network.start(&format!(
                "accelerate --name {name} {ports} --rate 1G --distance 10km --transport"
            ))
        };
        let near_box = start("near", "--lan west --wan w1");
        let done = finish(&network, "box health near");
        assert_eq!(done.status.code(), Some(1), "{done}");
        assert!(done.stderr.contains("no far box has answered yet"), "{done}");
        let fibre = network.start("emulate --a w2 --b e2 --distance 10km --rate 1G");
        let far_box = start("far", "--lan east --wan e1");
        network.transfer("ib_write_bw -R -s 65536 -m 1024 -n 400", || {});
        becomes_ready(&network, "near");
        // Both halves of both boxes have flows, and release them.
        for name in ["near", "far"] {
            succeed(&network, &format!("accelerate drain {name} --timeout 60s"));
        }
        network.transfer("ib_write_bw -R -s 65536 -m 1024 -n 100", || {});
        let metrics = succeed(&network, "box status near --prometheus").stdout;
        for name in [
            "path_parity_sent_total",
            "path_repaired_total",
            "path_rtt_seconds",
            "path_residual_loss",
        ] {
            assert!(
                metrics.contains(&format!("longhaul_transport_{name}{{box=\"near\"")),
                "{name}: {metrics}"
            );
        }
        for one in [near_box, fibre, far_box] {
            one.end();
        }
    }

    #[test]
    fn at_an_address_that_is_taken_is_refused() {
        let Some(network) = Network::new("an address that is taken", 1500) else { return };
        let mut command = network
            .middle
            .longhaul(&network.runtime, "accelerate --lan west --wan east --health 192.0.2.1:80");
        let done = Program::start(&mut command).finish(LIMIT);
        assert_eq!(done.status.code(), Some(1), "{done}");
        assert!(done.stderr.contains("cannot answer at --health 192.0.2.1:80"), "{done}");
    }
}

mod several_paths {
    use super::*;

    #[test]
    fn carry_on_when_one_of_them_is_cut() {
        require("ib_write_bw", "perftest");
        let Some(network) = Network::new("two paths of which one is cut", 1500) else { return };
        for (one, other) in [("x1", "x2"), ("y1", "y2")] {
            network
                .middle
                .set(&format!("link add {one} mtu 1600 type veth peer name {other} mtu 1600"));
        }
        for interface in ["x1", "x2", "y1", "y2", "w1", "w2", "e1", "e2"] {
            network.middle.set(&format!("link set {interface} mtu 1600 addrgenmode none up"));
        }
        let start = |name: &str, ports: &str| {
            let rest = "--rate 500M --distance 10km --transport";
            network.start(&format!("accelerate --name {name} {ports} {rest}"))
        };
        let near_box = start("near", "--lan west --wan w1 --wan x1");
        let fibres =
            network.start("emulate --a w2 --b e2 --a x2 --b y2 --distance 10km --rate 500M");
        let far_box = start("far", "--lan east --wan e1 --wan y1");
        let is_up = |status: &Value, path: usize| {
            status["pairs"][0]["transport"]["sessions"][0]["paths"][path]["is_up"] == true
        };
        network.transfer("ib_write_bw -R -s 65536 -m 1024 -n 4000", || {
            network.wait_for(&near_box, "two paths that carry", |status| {
                let sent = |path: usize| {
                    status["pairs"][0]["transport"]["sessions"][0]["paths"][path]["sent"].as_u64()
                        > Some(1000)
                };
                sent(0) && sent(1)
            });
            network.middle.set("link set w2 down");
            network.wait_for(&near_box, "a path that is out", |status| {
                !is_up(status, 0) && is_up(status, 1)
            });
        });
        let status = network.status(&near_box);
        let ports = status["pairs"][0]["ports"].as_array().expect("ports");
        let sides: Vec<&str> = ports.iter().filter_map(|port| port["side"].as_str()).collect();
        assert_eq!(
            (&status["pairs"][0]["name"], &sides[..]),
            (&"west-w1+x1".into(), &["lan", "wan1", "wan2"][..])
        );
        assert_eq!(status["pairs"][0]["accelerator"]["counters"]["flows_failed"], 0, "{status:#}");
        // One path is enough.
        becomes_ready(&network, "near");
        network.middle.set("link set w2 up");
        network.transfer("ib_write_bw -R -s 65536 -m 1024 -n 400", || {
            network
                .wait_for(&near_box, "both paths", |status| is_up(status, 0) && is_up(status, 1));
        });
        let ended = near_box.end();
        assert!(ended.stderr.contains("between west and w1, x1"), "{ended}");
        assert!(ended.stderr.contains("wan1 port w1 went down"), "{ended}");
        fibres.end();
        far_box.end();
    }
}

mod the_live_view {
    use super::*;

    #[test]
    fn has_flows_by_rate_with_their_delays_and_metrics_have_them_too() {
        require("ib_write_bw", "perftest");
        let Some(network) = Network::new("the live view", 1500) else { return };
        let near_box =
            network.start("accelerate --name near --lan west --wan w1 --rate 1G --distance 100km");
        let fibre = network.start("emulate --a w2 --b east --distance 100km --rate 1G");
        // Ten seconds, so that it still runs at the end of the interval that is shown.
        network.transfer("ib_write_bw -R -s 65536 -m 1024 -n 20000", || {
            network.wait_for(&near_box, "a flow", |status| stored(status) > 1 << 16);
            let frame = succeed(&network, "top --once").stdout;
            let flow = frame.lines().find(|line| line.contains("10.99.0.1 > 10.99.0.2 QP 0x"));
            let flow = flow.unwrap_or_else(|| panic!("{frame}"));
            let words: Vec<&str> = flow.split_whitespace().collect();
            let at =
                words.iter().position(|word| *word == "early").unwrap_or_else(|| panic!("{frame}"));
            assert_eq!((words[0], words[at + 1]), ("near/west-w1", "accelerated"), "{frame}");
            let rate: f64 = words[at + 2].parse().expect("a rate");
            // The machine's load determines it, up to the rate of the fibre and what is stored.
            assert!((1e-3..2.0).contains(&rate), "{frame}");
            for part in ["accelerate near, up ", "emulate emulate, up ", "lan west: in ", " stored"]
            {
                assert!(frame.contains(part), "{part}: {frame}");
            }
            let metrics = succeed(&network, "box status near --prometheus").stdout;
            let value = |name: &str| -> f64 {
                let name = format!("longhaul_accelerator_flow_{name}{{");
                let line = metrics.lines().find(|line| line.starts_with(&name));
                let value = line.and_then(|line| line.rsplit(' ').next()?.parse().ok());
                value.unwrap_or_else(|| panic!("{name}: {metrics}"))
            };
            assert!((1e-7..1.0).contains(&value("ack_delay_seconds")), "{metrics}");
            assert!((1e-3..1.0).contains(&value("rtt_seconds")), "{metrics}");
            assert!(value("stored_payload_bytes_total") > 1e6, "{metrics}");
        });
        near_box.end();
        fibre.end();
        let none = finish(&network, "top");
        assert!(none.stderr.contains("no box or lab is running here; start one"), "{none}");
    }

    #[test]
    fn without_a_terminal_names_the_other_way() {
        let Some(network) = Network::new("the live view without a terminal", 1500) else { return };
        let fibre = network.start("emulate --a west --b east");
        let done = finish(&network, "top");
        assert_eq!(done.status.code(), Some(1), "{done}");
        assert!(done.stderr.contains("not a terminal; use --once"), "{done}");
        fibre.end();
    }
}
