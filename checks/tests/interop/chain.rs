//! Two kernels with rxe through our boxes. Skipped, loudly, if no guest is available.

use longhaul_checks::guest::skip_loudly;
use longhaul_checks::interop::{Between, RxeHosts, segments};
use longhaul_checks::perftest::{complaint, figures};
use longhaul_checks::segments::{Segments, prove};
use longhaul_checks::{Turn, longhaul};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(240);

fn boot() -> Option<RxeHosts> {
    RxeHosts::boot("chn", |config| config)
        .inspect_err(|reason| skip_loudly("rxe through our boxes", reason))
        .ok()
}

/// Four recordings of one run prove that nothing is acknowledged that is not stored and delivered,
/// that each byte arrives once and in order, and that PSNs and MSNs are right. The recordings are
/// kept in the target directory.
#[test]
fn recordings_prove_that_nothing_is_promised_that_is_not_kept() {
    let _turn = Turn::take();
    let Some(hosts) = boot() else { return };
    let captures = longhaul().with_file_name("interop-segments");
    std::fs::create_dir_all(&captures).unwrap_or_else(|e| panic!("{}: {e}", captures.display()));
    for between in [Between::accelerated(1000), Between { loss: 2e-3, ..Between::accelerated(100) }]
    {
        let boxes = hosts.join(between, Some(&captures));
        for line in [
            "ib_write_bw -s 65536 -n 100",
            "ib_send_bw -s 4096 -n 200 -R",
            "ib_read_bw -s 4096 -n 50",
        ] {
            let client = hosts
                .perftest(line, LIMIT)
                .unwrap_or_else(|text| panic!("{between:?}, {line}\n{text}"));
            assert_eq!(complaint(&client.stdout), None, "{client}");
        }
        boxes.stop();
        let files = segments(&captures);
        let proof = Segments::open(files.each_ref().map(|path| Some(path.as_path()))).map(prove);
        let proof = proof.unwrap_or_else(|e| panic!("{}: {e}", captures.display())).unwrap();
        assert!(proof.holds(), "{between:?}: {proof:#?}");
    }
}

#[test]
#[ignore = "minutes: cargo xtask interop"]
fn programs_run_over_1000_km() {
    let _turn = Turn::take();
    let Some(hosts) = boot() else { return };
    for between in [
        Between::accelerated(1000),
        Between { far: false, ..Between::accelerated(1000) },
        Between { near: false, ..Between::accelerated(1000) },
        Between { loss: 1e-3, ..Between::accelerated(100) },
    ] {
        let boxes = hosts.join(between, None);
        for line in [
            "ib_write_bw -s 65536 -n 100",
            "ib_write_bw -s 65536 -n 100 -R",
            "ib_send_bw -s 4096 -n 200",
            "ib_send_bw -s 4096 -n 200 -R",
            "ib_read_bw -s 4096 -n 100",
            "ib_read_bw -s 65536 -n 50 -R",
            "ib_write_lat -s 2 -n 20",
        ] {
            let client = hosts
                .perftest(line, LIMIT)
                .unwrap_or_else(|text| panic!("{between:?}, {line}\n{text}"));
            assert_eq!(complaint(&client.stdout), None, "{client}");
            println!("{between:?}, {line}: {:?}", figures(&client.stdout));
        }
        let rping = "rping -C 5 -S 1000 -V";
        let peer = hosts.address(1);
        hosts
            .run(&format!("{rping} -s -a {peer}"), &format!("{rping} -c -a {peer}"), LIMIT)
            .unwrap_or_else(|text| panic!("{between:?}, {rping}\n{text}"));
        for ended in boxes.stop() {
            println!("{}", ended.stdout);
        }
    }
}
