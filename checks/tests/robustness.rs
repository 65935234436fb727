//! Effects of a program on a library in its process: fork, late loading, signals, closed
//! descriptors.

use longhaul_checks::{BackToBack, Program, Ready, Turn, free_tcp_port, longhaul, require};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(240);
const PYTHON: &str = "/usr/bin/python3";

/// Runs one scenario of `python/robustness.py` in a process without a peer.
fn scenario(name: &str) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/robustness.py");
    assert!(Path::new(PYTHON).exists(), "python3 is not installed: apt-get install python3");
    let _turn = Turn::take();
    let place = BackToBack::new();
    let finished =
        Program::start(&mut place.server(&format!("{PYTHON} {} {name}", script.display())))
            .succeed(LIMIT);
    assert!(finished.stdout.contains("survived"), "{finished}");
    assert!(!finished.stderr.contains("panicked"), "{finished}");
}

mod fork {
    use super::*;

    #[test]
    fn before_the_device_is_opened() {
        scenario("fork_before_opening");
    }

    #[test]
    fn after_a_queue_pair_was_made() {
        scenario("fork_after_opening");
    }

    #[test]
    fn by_a_chain_of_programs() {
        require("ibv_devinfo", "ibverbs-utils");
        let _turn = Turn::take();
        let line = "env nice timeout 20 setsid -w nohup ibv_devinfo -d longhaul0";
        assert!(BackToBack::new().alone(line).stdout.contains("PORT_ACTIVE"));
    }
}

mod loading {
    use super::*;

    #[test]
    fn by_the_program_itself_finds_the_device() {
        scenario("loaded_late");
    }
}

mod threads {
    use super::*;

    #[test]
    fn that_end_while_they_poll() {
        scenario("threads_that_end");
    }
}

mod signals {
    use super::*;

    #[test]
    fn interrupt_the_wait_for_a_completion() {
        scenario("signal_without_restart");
    }

    #[test]
    fn by_the_thousand_lose_no_completion() {
        scenario("signal_storm");
    }
}

mod descriptors {
    use super::*;

    #[test]
    fn zero_to_two_may_be_closed() {
        scenario("closed_standard_descriptors");
    }

    #[test]
    fn that_run_out_are_an_error_and_no_end() {
        scenario("few_descriptors");
    }
}

mod memory {
    use super::*;

    /// A copy of the library without debug information, whose format this valgrind cannot read.
    fn stripped() -> PathBuf {
        let copy = longhaul().with_file_name("liblonghaul_preload.stripped.so");
        let library = longhaul().with_file_name("liblonghaul_preload.so");
        let mut command = std::process::Command::new("strip");
        Program::start(command.arg("-g").arg("-o").arg(&copy).arg(library)).succeed(LIMIT);
        copy
    }

    /// The blocks of valgrind's report that name the library; memory in use at exit is no error.
    fn ours(report: &str) -> Vec<&str> {
        let blocks = report.split("<error>").skip(1);
        blocks
            .filter(|block| block.contains("liblonghaul_preload") && !block.contains("<kind>Leak_"))
            .collect()
    }

    #[test]
    fn is_used_as_it_should_be() {
        require("valgrind", "valgrind");
        require("strip", "binutils");
        require("ib_write_bw", "perftest");
        let _turn = Turn::take();
        let place = BackToBack::new();
        let port = free_tcp_port();
        let report = std::env::temp_dir().join(format!("longhaul-check-valgrind-{port}.xml"));
        let options = format!("-d longhaul0 -F -p {port} -n 20 -s 5000 -u 18");
        let server = place
            .start(&mut place.server(&format!("ib_write_bw {options}")), Ready::Tcp(port))
            .unwrap_or_else(|text| panic!("{text}"));
        let line = format!(
            "valgrind --xml=yes --xml-file={} ib_write_bw {options} 127.0.0.1",
            report.display()
        );
        let client =
            Program::start(place.client(&line).env("LD_PRELOAD", stripped())).succeed(LIMIT);
        server.succeed(LIMIT);
        let text = fs::read_to_string(&report).unwrap_or_else(|e| panic!("{e}: {client}"));
        fs::remove_file(&report).expect("the report");
        assert!(text.contains("</valgrindoutput>"), "{text}");
        assert!(ours(&text).is_empty(), "{}", ours(&text).join("\n"));
    }
}
