//! Unmodified communication libraries on the device: UCX, libfabric and Open MPI, from Debian's
//! packages, between two lab hosts; and KV-cache transfers by libraries from PyPI.

use longhaul_checks::{LabHosts, Ranks, Ready, free_tcp_port, longhaul, require};
use longhaul_namespace::skip;
use std::path::Path;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(240);
/// Not the first `python3` in the path: mpi4py belongs to Debian's.
const PYTHON: &str = "/usr/bin/python3";

fn script(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("python").join(name).display().to_string()
}

/// Runs `transfer`, which must move at least `bytes` through the device of host a.
fn through_the_device<T>(hosts: &LabHosts, bytes: u64, transfer: impl FnOnce() -> T) -> T {
    let before = hosts.device_bytes();
    let result = transfer();
    let moved = hosts.device_bytes() - before;
    assert!(moved >= bytes, "{moved} B through the device, of {bytes}");
    result
}

mod ucx {
    use super::*;

    /// The device alone, so that UCX cannot choose TCP or shared memory.
    const DEVICE: (&str, &str) = ("UCX_NET_DEVICES", "longhaul0:1");

    /// UCX makes its reliable connections through datagrams.
    fn perftest(hosts: &LabHosts, transports: &str, test: &str, size: u64, iterations: u64) {
        require("ucx_perftest", "ucx-utils");
        let port = free_tcp_port();
        let options = format!("-p {port} -t {test} -s {size} -n {iterations} -w 10 -f");
        let server = format!("ucx_perftest {options}");
        let client = format!("ucx_perftest 10.77.0.2 {options}");
        let variables = [DEVICE, ("UCX_TLS", transports)];
        let (_, client) = through_the_device(hosts, size * iterations, || {
            hosts.pair((&server, &client), Ready::Tcp(port), &variables, LIMIT)
        });
        // With `-f` its last line is the row of final figures.
        let row = client.stdout.lines().last().unwrap_or_default();
        let done = row.split_whitespace().next().and_then(|n| n.parse::<u64>().ok());
        assert_eq!(done, Some(iterations), "{transports} {test}: {client}");
    }

    #[test]
    fn finds_the_device_and_its_transports() {
        require("ucx_info", "ucx-utils");
        let Some(hosts) = LabHosts::up("") else { return };
        let info = hosts.run("ucx_info -d", LIMIT);
        for transport in ["rc_verbs", "ud_verbs"] {
            let found = format!("#      Transport: {transport}\n#         Device: longhaul0:1\n");
            assert!(info.stdout.contains(&found), "{transport} is missing in {info}");
        }
    }

    #[test]
    fn moves_tags_active_messages_and_memory_over_reliable_connections() {
        let Some(hosts) = LabHosts::up("--distance 1km") else { return };
        let rc = "rc_verbs,ud_verbs";
        perftest(&hosts, rc, "tag_bw", 1 << 20, 200);
        perftest(&hosts, rc, "tag_lat", 8, 1000);
        perftest(&hosts, rc, "ucp_am_bw", 65536, 1000);
        perftest(&hosts, rc, "ucp_am_lat", 8192, 500);
        perftest(&hosts, rc, "ucp_put_bw", 65536, 1000);
        perftest(&hosts, rc, "ucp_get", 65536, 200);
        perftest(&hosts, rc, "ucp_fadd", 8, 200);
    }

    #[test]
    fn moves_tags_and_active_messages_over_datagrams() {
        let Some(hosts) = LabHosts::up("--distance 1km") else { return };
        perftest(&hosts, "ud_verbs", "tag_bw", 1 << 20, 100);
        perftest(&hosts, "ud_verbs", "tag_lat", 8, 1000);
        perftest(&hosts, "ud_verbs", "ucp_am_bw", 8192, 1000);
    }
}

mod libfabric {
    use super::*;

    fn pingpong(hosts: &LabHosts, endpoint: &str) {
        let port = free_tcp_port();
        let options = format!("{endpoint} -I 20 -c");
        let server = format!("fi_pingpong -B {port} {options}");
        let client = format!("fi_pingpong -P {port} {options} 10.77.0.2");
        let (server, client) = through_the_device(hosts, 2 * 20 * 64, || {
            hosts.ends((&server, &client), Ready::Tcp(port), &[], LIMIT)
        });
        for end in [server, client] {
            // A row for each size, of which every one has arrived.
            let rows = end.stdout.lines().filter(|line| line.contains("=20")).count();
            assert!(rows >= 4, "{endpoint}: {end}");
            // libfabric 1.17 may close a connection that its peer closes before it has read the
            // last completion, and then reports the requests that this flushes.
            let is_flushed = end.stderr.contains("Work Request Flushed Error");
            assert!(end.status.success() || is_flushed, "{endpoint}: {end}");
        }
    }

    #[test]
    fn offers_messages_datagrams_and_its_own_layers() {
        require("fi_info", "libfabric-bin");
        let Some(hosts) = LabHosts::up("") else { return };
        let info = hosts.run("fi_info -p verbs", LIMIT);
        for (provider, kind) in [
            ("verbs", "FI_EP_MSG"),
            ("verbs", "FI_EP_DGRAM"),
            ("verbs;ofi_rxm", "FI_EP_RDM"),
            ("verbs;ofi_rxd", "FI_EP_RDM"),
        ] {
            let found = info.stdout.split("provider: ").any(|entry| {
                entry.lines().next() == Some(provider) && entry.contains(&format!("type: {kind}"))
            });
            assert!(found, "{provider} {kind} is missing in {info}");
        }
    }

    #[test]
    fn moves_data_over_each() {
        require("fi_pingpong", "libfabric-bin");
        let Some(hosts) = LabHosts::up("--distance 1km") else { return };
        pingpong(&hosts, "-p verbs -e msg");
        pingpong(&hosts, "-p verbs -e dgram");
        pingpong(&hosts, "-p verbs;ofi_rxm -e rdm");
        pingpong(&hosts, "-p verbs;ofi_rxd -e rdm");
    }
}

mod open_mpi {
    use super::*;

    fn exchange(place: Ranks, options: &str) {
        require("mpirun", "openmpi-bin");
        let mpi4py = Path::new("/usr/lib/python3/dist-packages/mpi4py").is_dir();
        assert!(mpi4py, "mpi4py is not installed: apt-get install python3-mpi4py");
        let Some(hosts) = LabHosts::up("--distance 1km") else { return };
        let line = format!("{PYTHON} {}", script("mpi_exchange.py"));
        // Four rounds of two times 16 messages of 1 MiB leave host a.
        let done = through_the_device(&hosts, (4 * 2 * 16) << 20, || {
            hosts.mpirun(4, place, options, &line, LIMIT)
        });
        let hosts = match place {
            Ranks::OnBothHosts => 2,
            Ranks::OnHostA => 1,
        };
        let figures = format!("\"ranks\": 4, \"hosts\": {hosts}");
        assert!(done.stdout.contains(&figures), "{done}");
    }

    const UCX: &str = "--mca pml ucx --mca opal_common_ucx_devices any \
         --mca opal_common_ucx_tls any -x UCX_NET_DEVICES=longhaul0:1 \
         -x UCX_TLS=rc_verbs,ud_verbs,self";

    #[test]
    fn runs_four_ranks_over_ucx() {
        exchange(Ranks::OnBothHosts, UCX);
    }

    #[test]
    fn runs_four_ranks_on_one_host() {
        exchange(Ranks::OnHostA, UCX);
    }

    #[test]
    fn runs_four_ranks_over_libfabric() {
        exchange(
            Ranks::OnBothHosts,
            "--mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include verbs;ofi_rxm",
        );
    }
}

mod sockets_over_rdma {
    use super::*;

    #[test]
    fn stream_between_hosts() {
        require("rstream", "rdmacm-utils");
        let Some(hosts) = LabHosts::up("--distance 100km --accelerate") else { return };
        let options = "-S 65536 -I 10 -C 20 -T v";
        let server = format!("rstream {options}");
        let client = format!("rstream -s 10.77.0.2 {options}");
        let (_, client) = through_the_device(&hosts, 2 * 10 * 20 * 65536, || {
            hosts.pair((&server, &client), Ready::Attached, &[], LIMIT)
        });
        assert!(client.stdout.contains("Gb/sec"), "{client}");
    }
}

/// Key-value caches move as many blocks between the sites of prefill and decoding. `./longhaul
/// test` installs the libraries.
mod kv_cache {
    use super::*;

    /// The Python that has them.
    fn python() -> Option<String> {
        let target = longhaul().parent()?.parent()?.to_owned();
        let python = target.join("kv-cache/bin/python");
        python.is_file().then(|| python.display().to_string())
    }

    /// Blocks and their size.
    type Cache = (u64, u64);
    const SMALL: Cache = (1024, 16 << 10);
    const MEDIUM: Cache = (256, 128 << 10);
    const LARGE: Cache = (64, 1 << 20);
    const DISTANCES: [&str; 3] = ["0km", "100km", "1000km"];
    /// The caches that move at each distance.
    const ONE_EACH: [&[Cache]; 3] = [&[SMALL], &[MEDIUM], &[LARGE]];
    const ALL: [&[Cache]; 3] = [&[SMALL, MEDIUM, LARGE]; 3];

    /// Moves caches to the other host and back, at every distance.
    fn moves(library: &str, variables: &[(&str, &str)], caches: [&[Cache]; 3]) {
        let Some(python) = python() else {
            return skip(format!("{library} is not installed: `./longhaul test` does"));
        };
        let script = format!("{python} {}", script("kv_transfer.py"));
        for (distance, caches) in DISTANCES.into_iter().zip(caches) {
            for boxes in ["", "--accelerate"] {
                let arguments = format!("--distance {distance} {boxes}");
                let Some(hosts) = LabHosts::up(&arguments) else { return };
                for &(blocks, size) in caches {
                    let port = free_tcp_port();
                    let server = format!("{script} {library} serve 10.77.0.2 {port}");
                    let client = format!(
                        "{script} {library} move 10.77.0.1 {port} 10.77.0.2 {blocks} {size}"
                    );
                    // Written once and read once in each of two rounds.
                    let (_, client) = through_the_device(&hosts, 4 * blocks * size, || {
                        hosts.pair((&server, &client), Ready::Tcp(port), variables, 2 * LIMIT)
                    });
                    let figures = client.stdout.lines().find(|line| line.starts_with('{'));
                    let figures = figures.unwrap_or_else(|| panic!("no figures in {client}"));
                    println!("{arguments}: {figures}");
                }
            }
        }
    }

    const FOR_NIXL: &[(&str, &str)] = &[
        ("UCX_NET_DEVICES", "longhaul0:1"),
        ("UCX_TLS", "rc_verbs,ud_verbs"),
        ("UCX_ZCOPY_THRESH", "0"),
    ];

    #[test]
    fn is_moved_by_nixl() {
        moves("nixl", FOR_NIXL, ONE_EACH);
    }

    #[test]
    fn is_moved_by_mooncake() {
        moves("mooncake", &[], ONE_EACH);
    }

    #[test]
    #[ignore = "minutes"]
    fn of_every_size_is_moved_by_nixl() {
        moves("nixl", FOR_NIXL, ALL);
    }

    #[test]
    #[ignore = "minutes"]
    fn of_every_size_is_moved_by_mooncake() {
        moves("mooncake", &[], ALL);
    }
}
