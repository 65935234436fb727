//! Whole plans: requirements, advice and warnings; every valid input gives a consistent plan.

use longhaul_planner::{
    Accelerator, Boxes, Limit, MTUS, NicProfile, Op, Path, Plan, Prediction, Raised, Reach,
    Request, UseCase, Workload,
};
use proptest::prelude::*;

fn request(op: Op, sizes: &[u64]) -> Request {
    Request {
        op,
        sizes: sizes.to_vec(),
        qps: 1,
        tx_depth: 128,
        cq_mod: None,
        iterations: None,
        target_bps: None,
        use_case: None,
        accelerator: Accelerator::default(),
    }
}

fn plan(path: &Path, nic: &str, request: &Request) -> Plan {
    Plan::new(path, &NicProfile::named(nic).unwrap(), request).unwrap()
}

fn commands(plan: &Plan) -> String {
    plan.steps.iter().flat_map(|step| &step.commands).map(|line| format!("{line}\n")).collect()
}

mod needs {
    use super::*;

    #[test]
    fn what_is_advised_reaches_the_target_and_one_queue_pair_less_does_not() {
        let path = Path::of_km(380.0, 100e9);
        for op in [Op::Write, Op::Read] {
            let request = request(op, &[4096, 65_536, 1 << 20]);
            let nic = NicProfile::named("connectx6").unwrap();
            for row in &plan(&path, "connectx6", &request).rows {
                if row.needs.reach == Reach::Now {
                    continue;
                }
                assert_eq!(row.needs.reach, Reach::Settings, "{row:?}");
                let with = |qps| {
                    let work = Workload {
                        qps,
                        tx_depth: row.needs.tx_depth,
                        ..request.workload(row.size)
                    };
                    Prediction::new(&path, &nic, &work).unwrap().goodput_bps
                };
                let qps = row.needs.qps.unwrap();
                assert!(
                    with(qps) >= row.needs.target_bps && with(qps - 1) < row.needs.target_bps,
                    "{row:?}"
                );
            }
        }
    }

    #[test]
    fn reads_of_the_380_km_report_need_the_bandwidth_delay_product_in_16s() {
        let plan = plan(&Path::of_km(380.0, 100e9), "connectx6", &request(Op::Read, &[65_536]));
        // 0.9 x 47.5 MB in messages of 64 KiB, 16 to a queue pair.
        let qps = (0.9_f64 * 47.5e6 / 65_536.0 / 16.0).ceil() as u32;
        assert!(plan.rows[0].needs.qps.unwrap().abs_diff(qps) <= 1, "{:?}", plan.rows[0].needs);
    }

    #[test]
    fn more_wqes_stand_in_for_queue_pairs_of_writes_but_not_of_reads() {
        let path = Path::of_km(100.0, 100e9);
        let log = |op| plan(&path, "connectx6", &request(op, &[4096])).rows[0].needs.raised;
        // 2991 messages of 4 KiB: 4096 WQEs.
        let raised = Raised { log_max_outstanding_wqe: 12, tx_depth: 4096 };
        assert_eq!((log(Op::Write), log(Op::Read)), (Some(raised), None));
    }

    #[test]
    fn small_writes_over_a_long_path_are_for_an_accelerator() {
        let path = Path::of_km(10_000.0, 100e9);
        let mut write = request(Op::Write, &[1024]);
        write.target_bps = Some(50e9);
        let plan_of_writes = plan(&path, "connectx6", &write);
        assert_eq!(plan_of_writes.rows[0].needs.reach, Reach::Accelerator);
        assert!(
            plan_of_writes.warnings[0].contains("An accelerator does"),
            "{:?}",
            plan_of_writes.warnings
        );
        assert!(commands(&plan_of_writes).contains("longhaul accelerate --lan"));
        let read = plan(&path, "connectx6", &Request { op: Op::Read, ..write });
        assert_eq!(read.rows[0].needs.reach, Reach::Never);
        assert!(read.warnings[0].contains("READ's round trip"), "{:?}", read.warnings);
    }

    #[test]
    fn a_window_that_takes_more_than_loss_is_the_limit() {
        let path = Path { loss: 1e-4, ..Path::of_km(1000.0, 100e9) };
        let limits: Vec<_> = plan(&path, "connectx6", &request(Op::Write, &[65_536, 4 << 20]))
            .rows
            .iter()
            .map(|row| (row.prediction.limit, row.prediction.loss_factor < 0.95))
            .collect();
        assert_eq!(limits, [(Limit::QueueDepth, true), (Limit::Loss, true)]);
    }

    #[test]
    fn loss_asks_for_more_queue_pairs_and_is_warned_of() {
        let path = Path { loss: 1e-4, ..Path::of_km(380.0, 100e9) };
        let clean = plan(&Path { loss: 0.0, ..path }, "connectx6", &request(Op::Write, &[1 << 20]));
        let lossy = plan(&path, "connectx6", &request(Op::Write, &[1 << 20]));
        assert_eq!(lossy.rows[0].prediction.limit, Limit::Loss);
        assert!(lossy.rows[0].needs.qps > clean.rows[0].needs.qps);
        assert!(
            lossy.warnings.iter().any(|w| w.starts_with("loss of 1e-4")),
            "{:?}",
            lossy.warnings
        );
        let (row, ceiling) = (&lossy.rows[0], clean.rows[0].prediction.ceiling_bps);
        assert!(row.transport.goodput_bps > 0.97 * ceiling, "{row:?}");
        assert!(row.accelerated.goodput_bps < 0.6 * ceiling, "{row:?}");
        assert_eq!(lossy.boxes, Some(Boxes::Transport));
        assert!(commands(&lossy).contains("--distance 380km --transport"), "{}", commands(&lossy));
        assert!(commands(&lossy).contains("--accelerate transport"), "{}", commands(&lossy));
        assert!(!commands(&clean).contains("transport"), "{}", commands(&clean));
    }
}

mod advice {
    use super::*;

    #[test]
    fn commands_name_the_settings_of_the_reports() {
        let plan = plan(&Path::of_km(100.0, 100e9), "connectx6", &request(Op::Write, &[4096]));
        let commands = commands(&plan);
        for part in [
            "mlxconfig -y -d \"$PCI\" set LOG_MAX_OUTSTANDING_WQE=12",
            "--reg_name ROCE_ACCL --set \"roce_adp_retrans_en=0x0\"",
            "ip link set dev \"$IF\" mtu 4200",
            "ethtool -G \"$IF\" tx 8192 rx 8192",
            "ib_write_bw -d \"$DEV\" -q 21 -t 512 -s 4096 -m 4096 -u 14",
            "min-threshold-bytes",
            "config ecn -profile",
        ] {
            assert!(commands.contains(part), "{part}:\n{commands}");
        }
    }

    #[test]
    fn the_software_rnic_of_the_kernel_gets_no_firmware_settings() {
        let commands =
            commands(&plan(&Path::of_km(100.0, 10e9), "rxe", &request(Op::Write, &[65_536])));
        assert!(commands.contains("rdma link add \"$DEV\" type rxe netdev \"$IF\""), "{commands}");
        assert!(!commands.contains("mlx"), "{commands}");
    }

    #[test]
    fn each_use_has_the_settings_of_its_programs() {
        let path = Path::of_km(1000.0, 100e9);
        for (case, parts) in [
            (
                UseCase::Storage,
                vec![
                    "nvmf_create_transport -t RDMA",
                    "--transport-ack-timeout 14",
                    "nvme connect -t rdma",
                    "proto=rdma,port=20049",
                ],
            ),
            (UseCase::Migration, vec!["rdma-pin-all on", "virsh migrate --live --rdma-pin-all"]),
            (
                UseCase::Training,
                vec!["NCCL_IB_TIMEOUT=20", "NCCL_BUFFSIZE=8388608", "UCX_RC_TIMEOUT=1000ms"],
            ),
            (UseCase::Database, vec!["UCX_RC_MAX_RD_ATOMIC=16"]),
            (UseCase::Cps, vec!["UCX_RC_PATH_MTU=4096"]),
            (UseCase::Telescope, vec!["ib_write_bw -c UC -d"]),
        ] {
            let request = Request { use_case: Some(case), ..request(case.op(), &[1 << 20]) };
            let commands = commands(&plan(&path, "connectx6", &request));
            for part in parts {
                assert!(commands.contains(part), "{case}: {part}:\n{commands}");
            }
        }
    }

    #[test]
    fn timeouts_follow_the_round_trip_into_every_program() {
        let path = Path::of_km(40_000.0, 100e9);
        let request = Request { use_case: Some(UseCase::Storage), ..request(Op::Read, &[1 << 20]) };
        let plan = plan(&path, "connectx6", &request);
        assert_eq!(plan.timeouts.code, 19);
        assert!(
            commands(&plan).contains("--transport-ack-timeout 19")
                && commands(&plan).contains("-u 19")
        );
        assert!(
            plan.timeouts.is_too_short && plan.warnings.iter().any(|w| w.contains("first timeout"))
        );
    }

    #[test]
    fn retries_that_end_before_an_answer_leave_nothing() {
        let nic = NicProfile { timeout_code: 8, ..NicProfile::named("connectx6").unwrap() };
        let plan =
            Plan::new(&Path::of_km(1000.0, 100e9), &nic, &request(Op::Write, &[4096])).unwrap();
        let prediction = &plan.rows[0].prediction;
        assert_eq!((prediction.limit, prediction.goodput_bps), (Limit::Retries, 0.0));
        assert!(plan.warnings.iter().any(|w| w.contains("transport retry counter exceeded")));
    }
}

mod input {
    use super::*;

    #[test]
    fn values_out_of_range_are_named_with_their_range() {
        let nic = NicProfile::ideal();
        let path = Path::of_km(1.0, 1e9);
        let refuse = |path: &Path, request: &Request| {
            Plan::new(path, &nic, request).unwrap_err().to_string()
        };
        let write = request(Op::Write, &[4096]);
        for (path, request, part) in [
            (Path { one_way_ns: -1.0, ..path }, write.clone(), "one-way delay (ns) -1"),
            (Path { one_way_ns: f64::NAN, ..path }, write.clone(), "one-way delay"),
            (Path { rate_bps: 0.0, ..path }, write.clone(), "rate (bit/s) 0"),
            (Path { loss: 1.0, ..path }, write.clone(), "0 to below 1"),
            (Path { mtu: 1500, ..path }, write.clone(), "256, 512, 1024, 2048 or 4096"),
            (path, Request { sizes: vec![], ..write.clone() }, "at least one"),
            (path, Request { sizes: vec![0], ..write.clone() }, "1 byte to 2 GiB"),
            (path, Request { sizes: vec![(1 << 31) + 1], ..write.clone() }, "1 byte to 2 GiB"),
            (path, Request { qps: 0, ..write.clone() }, "queue pairs 0"),
            (path, Request { tx_depth: 0, ..write.clone() }, "tx-depth 0"),
            (path, Request { cq_mod: Some(129), ..write.clone() }, "cq-mod 129"),
            (path, Request { iterations: Some(0), ..write.clone() }, "iterations 0"),
            (path, Request { target_bps: Some(f64::INFINITY), ..write.clone() }, "target inf"),
        ] {
            let error = refuse(&path, &request);
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn a_slower_path_than_port_and_a_small_mtu_are_warned_of() {
        let path = Path { mtu: 1024, ..Path::of_km(1000.0, 10e9) };
        let warnings = plan(&path, "connectx6", &request(Op::Write, &[65_536])).warnings.join("\n");
        assert!(
            warnings.contains("faster than the path") && warnings.contains("path MTU of 1024"),
            "{warnings}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn predictions_are_finite_within_the_line_and_named_by_their_closest_bound(
        one_way_ns in prop_oneof![Just(0.0), 1.0..1e10_f64],
        rate_log in 3.0..15.0_f64,
        loss in prop_oneof![Just(0.0), 1e-9..0.999_f64],
        mtu in 0..5_usize,
        nic in 0..5_usize,
        op in prop_oneof![Just(Op::Write), Just(Op::Send), Just(Op::Read), Just(Op::Atomic)],
        size in 1..=1_u64 << 31,
        qps in 1..100_000_u32,
        depth in 1..100_000_u32,
        iterations in prop_oneof![Just(None), (1..1_000_000_u64).prop_map(Some)],
    ) {
        let path =
            Path { one_way_ns, loss, mtu: MTUS[mtu], ..Path::of_km(0.0, 10_f64.powf(rate_log)) };
        let name = NicProfile::names().nth(nic).unwrap();
        let nic = NicProfile::named(name).unwrap();
        let work = Workload { iterations, ..Workload::perftest(op, size, qps, depth) };
        let p = Prediction::new(&path, &nic, &work).unwrap();
        prop_assert!(p.goodput_bps.is_finite() && p.goodput_bps >= 0.0);
        // A run may end within a window, before its lots make it wait.
        let closest =
            p.bounds.iter().find(|bound| iterations.is_none() || !bound.limit.is_window()).unwrap();
        prop_assert!(p.goodput_bps <= closest.goodput_bps * 1.000_001, "{p:?}");
        prop_assert!(p.bounds[0].goodput_bps <= p.ceiling_bps * 1.000_001);
        prop_assert!(p.bounds.is_sorted_by(|a, b| a.goodput_bps <= b.goodput_bps));
        prop_assert!(p.latency_ns >= one_way_ns && p.latency_ns.is_finite());
        prop_assert!((0.0..=1.0).contains(&p.loss_factor));
        if !matches!(p.limit, Limit::Loss | Limit::Retries) {
            prop_assert_eq!(p.limit, p.bounds[0].limit);
        }
    }

    #[test]
    fn plans_of_anything_are_made_without_a_panic(
        km in 0.0..80_000.0_f64,
        rate_log in 6.0..12.0_f64,
        loss in prop_oneof![Just(0.0), 1e-9..0.5_f64],
        op in prop_oneof![Just(Op::Write), Just(Op::Read)],
        log in 0..31_u32,
        qps in 1..5000_u32,
        depth in 1..40_000_u32,
        case in 0..6_usize,
    ) {
        let path = Path { loss, ..Path::of_km(km, 10_f64.powf(rate_log)) };
        let request = Request {
            qps,
            tx_depth: depth,
            use_case: Some(UseCase::ALL[case]),
            ..request(op, &[1 << log])
        };
        let plan = plan(&path, "connectx6", &request);
        for line in commands(&plan).lines() {
            prop_assert!(!line.contains("NaN") && !line.contains("inf "), "{line}");
        }
    }

    #[test]
    fn more_queue_pairs_never_give_less_and_distance_never_gives_more(
        km in 1.0..10_000.0_f64,
        log in 0..24_u32,
        qps in 1..2048_u32,
        loss in prop_oneof![Just(0.0), 1e-7..1e-2_f64],
    ) {
        let nic = NicProfile::named("connectx6").unwrap();
        let goodput = |km, qps| {
            let path = Path { loss, ..Path::of_km(km, 100e9) };
            Prediction::new(&path, &nic, &Workload::perftest(Op::Write, 1 << log, qps, 128))
                .unwrap()
                .goodput_bps
        };
        prop_assert!(goodput(km, qps + 1) >= goodput(km, qps) * 0.999_999);
        prop_assert!(goodput(km + 1.0, qps) <= goodput(km, qps) * 1.000_001);
    }
}
