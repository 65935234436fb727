//! Debian's kernel under emulation: the harness itself, and rxe beside our device. Skipped, loudly,
//! if no kernel can be downloaded.

use longhaul_checks::guest::against_rxe::{self, Extent, Figure, Stack};
use longhaul_checks::guest::{Guest, GuestConfig, Netdev, Tap, skip_loudly};
use longhaul_checks::{Turn, longhaul};
use std::path::PathBuf;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);

/// `None`: skipped.
fn boot(what: &str, config: &GuestConfig) -> Option<Guest> {
    Guest::boot(config).inspect_err(|reason| skip_loudly(what, reason)).ok()
}

mod harness {
    use super::*;

    #[test]
    fn commands_come_back_with_output_and_exit_code() {
        let _turn = Turn::take();
        let mut config = GuestConfig::new("small");
        config.files.push(("/etc/motto".to_owned(), b"over distance".to_vec()));
        config.moved.push(("/opt/longhaul".to_owned(), longhaul()));
        let Some(guest) = boot("commands in a guest", &config) else { return };

        let done = guest.run("echo \"it's  here\"\ncat /etc/motto\necho aside >&2; exit 3", LIMIT);
        assert_eq!(
            (done.status.code(), &*done.stdout),
            (Some(3), "it's  here\nover distance"),
            "{done}"
        );
        assert_eq!(done.stderr, "aside\n");

        let version = guest.succeed("/opt/longhaul --version", LIMIT);
        assert!(version.stdout.starts_with("longhaul "), "{version}");

        let many = guest.succeed("seq 200000", LIMIT).stdout;
        assert_eq!(many.lines().count(), 200_000);
        assert!(many.ends_with("\n200000\n"), "the last line is missing");

        what_runs_too_long_is_killed_with_its_children(&guest);
        jobs_run_side_by_side(&guest);
    }

    fn what_runs_too_long_is_killed_with_its_children(guest: &Guest) {
        let killed = guest.run("echo before; sleep 1234 & sleep 1234", Duration::from_secs(10));
        assert_eq!((killed.status.code(), &*killed.stdout), (Some(137), "before\n"), "{killed}");
        let left = guest.run("pgrep -f 'sleep 123[4]'", LIMIT);
        assert_eq!(left.stdout, "", "{left}");
    }

    fn jobs_run_side_by_side(guest: &Guest) {
        let waits = guest
            .spawn("echo waiting; until [ -e /tmp/go ]; do sleep 0.05; done; echo went", LIMIT);
        guest.succeed("true", LIMIT);
        assert!(waits.is_running());
        guest.succeed("touch /tmp/go", LIMIT);
        assert_eq!(waits.succeed().stdout, "waiting\nwent\n");
        let stopped = guest.spawn(
            "trap 'echo stopped; exit 5' TERM; echo up; while :; do sleep 0.05; done",
            LIMIT,
        );
        while !stopped.output().0.contains("up") {
            assert!(stopped.is_running());
        }
        stopped.signal("TERM");
        let stopped = stopped.finish();
        assert_eq!(stopped.stdout, "up\nstopped\n", "{stopped}");
    }

    #[test]
    fn a_guest_reaches_this_machine_over_a_tap_and_another_one_over_datagrams() {
        let what = "network between guests and this machine";
        let _turn = Turn::take();
        let tap = match Tap::new("g", "192.168.177.1/24", 4400) {
            Ok(tap) => tap,
            Err(reason) => return skip_loudly(what, &reason),
        };
        let sockets = longhaul_checks::RuntimeDir::new();
        let [first, second]: [PathBuf; 2] =
            ["first", "second"].map(|name| sockets.path().join(name));
        let mut left = GuestConfig::new("left").programs(&[("ip", "iproute2")]);
        left.netdevs.push(Netdev::tap(&tap, "52:54:00:00:00:01", 4400));
        left.netdevs.push(Netdev::datagrams(&first, &second, "52:54:00:00:01:01", 4400));
        let mut right = GuestConfig::new("right").programs(&[("ip", "iproute2")]);
        right.netdevs.push(Netdev::datagrams(&second, &first, "52:54:00:00:01:02", 4400));
        let Some(left) = boot(what, &left) else { return };
        let Some(right) = boot(what, &right) else { return };

        left.succeed("ip link set eth0 up; ip address add 192.168.177.2/24 dev eth0", LIMIT);
        left.succeed("ip link set eth1 up; ip address add 192.168.178.1/24 dev eth1", LIMIT);
        right.succeed("ip link set eth0 up; ip address add 192.168.178.2/24 dev eth0", LIMIT);
        assert_eq!(left.succeed("cat /sys/class/net/eth0/mtu", LIMIT).stdout, "4400\n");
        left.succeed("ping -c 2 -W 5 -s 4300 192.168.177.1", LIMIT);
        left.succeed("ping -c 2 -W 5 -s 4300 192.168.178.2", LIMIT);
    }
}

mod rxe {
    use super::*;

    const EXTENT: Extent = Extent::Messages(200);

    #[test]
    fn rxe_and_our_device_run_the_same_programs_in_one_guest() {
        let _turn = Turn::take();
        let Some(guest) = boot("rxe beside our device", &against_rxe::config()) else { return };
        against_rxe::prepare(&guest);
        for figure in Figure::ALL {
            for stack in Stack::ALL {
                let value = against_rxe::measure(&guest, stack, figure, EXTENT);
                println!("{}, {}: {value} {}", figure.name(), stack.name(), figure.unit());
                assert!(value > 0.0, "{} of {}", figure.name(), stack.name());
            }
        }
    }
}
