//! rdma-core's Python tests, which cover the whole verbs API: objects, attributes, traffic over all
//! transports, extended CQs and posting, errors.

use longhaul_checks::{BackToBack, Program, Ready, TestLab, Turn, free_tcp_port};
use std::path::Path;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(240);
/// Not the first `python3` in the path: the package belongs to Debian's.
const PYTHON: &str = "/usr/bin/python3";
/// Excluded: tests that need one vendor's hardware, a kernel device file (`test_shared_pd`) or a
/// kernel network interface (`test_rdmacm`).
const MODULES: &str = "test_device test_pd test_mr test_addr test_cq test_cqex test_cq_events \
     test_qp test_qpex test_atomic test_odp test_parent_domain test_fork test_relaxed_ordering \
     test_rss_traffic test_tag_matching test_flow";

fn run(modules: &str) {
    let tests = Path::new("/usr/share/doc/rdma-core/tests");
    assert!(tests.is_dir(), "rdma-core's tests are not installed: apt-get install python3-pyverbs");
    let lab = TestLab::up("");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/rdma_core_tests.py");
    let scratch = lab.runtime().path().join("rdma-core");
    let line = format!("{PYTHON} {} {} {modules}", script.display(), scratch.display());
    let finished = Program::start(&mut lab.command("a", &line)).succeed(LIMIT);
    assert!(finished.stderr.contains("\nOK"), "{finished}");
}

#[test]
fn all_that_apply_pass() {
    run(MODULES);
}

#[test]
fn two_processes_move_data_through_pyverbs() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/pyverbs_pair.py");
    let _turn = Turn::take();
    let port = free_tcp_port();
    let server = format!("{PYTHON} {} {port}", script.display());
    let client = format!("{server} 127.0.0.1");
    let (server, client) = BackToBack::new().pair(&server, &client, Ready::Tcp(port), LIMIT);
    for end in [server, client] {
        assert!(end.stdout.contains("all data arrived"), "{end}");
    }
}
