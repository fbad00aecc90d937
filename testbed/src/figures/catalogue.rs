//! Figures of curves over one flag, for example the load: their set-ups and series. A pair of texts is a flag
//! of `wedjat-testbed sim` and its value. The title of a reproduced figure names the paper, and the figure's number
//! if the paper has that figure.

use super::Quantity::{Imbalance, Mean, Messages, P99};
use super::{Figure, Keys, Quantity};

/// Loads of the x axis in the model of racks.
const LOADS: (&str, &str) = ("load", "0.1,0.3,0.5,0.6,0.7,0.8,0.85,0.9,0.95");
/// Loads of the x axis in the model of slots, whose runs are stable up to higher loads.
const SLOT_LOADS: (&str, &str) = ("load", "0.5,0.6,0.7,0.8,0.85,0.9,0.95,0.99");
/// Distributions of the service time in the Horus paper.
const EXP: (&str, &str) = ("service", "exp(100us)");
const BIMODAL: (&str, &str) = ("service", "mix(0.5*normal(50us,5us), 0.5*normal(500us,50us))");
const TRIMODAL: (&str, &str) = (
    "service",
    "mix(0.333333333333*normal(50us,5us), 0.333333333333*normal(500us,50us), 0.333333333334*normal(5000us,500us))",
);
/// Pool of 480 workers, about the median size, on whole servers: 15 racks of 32 workers under one spine.
const MEDIAN: (&str, &str) = ("racks", "32,32,32,32,32,32,32,32,32,32,32,32,32,32,32");

// Series of figures: the label of a curve, and its flags. Most labels are names of policies. The lists are for one
// rack, for racks under a spine, for the LSQ paper, and for the comparison of policies from all papers.
const ONE_RACK: &[(&str, Keys)] = &[
    ("horus", &[("policy", "horus")]),
    ("racksched", &[("policy", "racksched")]),
    ("jsq, no delay", &[("policy", "jsq"), ("hop", "0us")]),
    ("cfcfs", &[("policy", "cfcfs")]),
];
const RACKS: &[(&str, Keys)] = &[
    ("horus", &[("policy", "horus")]),
    ("horus, by the authors' simulator", &[("policy", "horus"), ("signals", "horus-sim")]),
    ("rs-lb", &[("policy", "rs-lb")]),
    ("rs-h", &[("policy", "rs-h")]),
];
const LSQ: &[(&str, Keys)] =
    policies!["jsq" "jsq(2)" "jiq" "lsq-sample(2)" "lsq-update(.2)" "lsq-smart(.2)"];
const ALL_POLICIES: &[(&str, Keys)] = policies![
    "random" "horus" "racksched" "jsq(2)" "jsq" "sed" "jiq" "lsq-sample(2)" "lsq-update(.2)" "lsq-smart(.2)"
    "hlsq-smart(.2)" "ppot" "ppot-ll" "ppot-ewma" "scd" "cfcfs"
];

/// Creates a figure: quantity `y` over the values of flag `x`, with the flags `setup` in all series.
const fn figure(
    name: &'static str,
    title: &'static str,
    x: (&'static str, &'static str),
    y: Quantity,
    setup: Keys,
    series: &'static [(&'static str, Keys)],
) -> Figure {
    Figure { name, title, x, y, setup, series }
}

/// Creates a figure of the LSQ paper from its name, its title and the speeds of the servers.
macro_rules! lsq {
    ($name:literal, $title:literal, $speeds:literal) => {
        figure($name, $title, SLOT_LOADS, Mean, &[("model", "slots"), ("speeds", $speeds)], LSQ)
    };
}

/// Figures of curves over one flag.
pub(super) const FIGURES: &[Figure] = &[
    figure("horus-10a", "Horus Fig. 10a: one rack, exp(100us)", LOADS, P99, &[EXP], ONE_RACK),
    figure("horus-10b", "Horus Fig. 10b: one rack, bimodal", LOADS, P99, &[BIMODAL], ONE_RACK),
    figure("horus-10c", "Horus Fig. 10c: one rack, trimodal", LOADS, P99, &[TRIMODAL], ONE_RACK),
    figure("horus-11a", "Horus Fig. 11a: 15 racks, exp(100us)", LOADS, P99, &[MEDIAN, EXP], RACKS),
    figure("horus-11b", "Horus Fig. 11b: 15 racks, bimodal", LOADS, P99, &[MEDIAN, BIMODAL], RACKS),
    figure(
        "horus-11c",
        "Horus Fig. 11c: 15 racks, trimodal",
        LOADS,
        P99,
        &[MEDIAN, TRIMODAL],
        RACKS,
    ),
    figure(
        "horus-12a",
        "Horus Fig. 12a: imbalance of queues",
        LOADS,
        Imbalance,
        &[MEDIAN, EXP],
        RACKS,
    ),
    figure(
        "horus-12b",
        "Horus Fig. 12b: network delay, load 0.8",
        ("hop", "0us,1us,2us,5us,10us,20us,50us,100us"),
        P99,
        &[MEDIAN, EXP, ("load", "0.8")],
        RACKS,
    ),
    figure(
        "horus-12c",
        "Horus Fig. 12c: packet loss, load 0.8",
        ("loss", "0,0.0001,0.001,0.005,0.01"),
        P99,
        &[MEDIAN, EXP, ("load", "0.8")],
        RACKS,
    ),
    figure(
        "horus-17",
        "Horus Fig. 17: parts of the policy, one rack, bimodal",
        LOADS,
        P99,
        &[BIMODAL],
        &[
            ("both parts (horus)", &[("policy", "horus")]),
            ("idle members, else random (jiq)", &[("policy", "jiq")]),
            ("power of two, delayed (racksched)", &[("policy", "racksched")]),
            ("random", &[("policy", "random")]),
        ],
    ),
    figure(
        "horus-19b",
        "Horus Fig. 19b: messages under packet loss, load 0.8",
        ("loss", "0,0.0001,0.001,0.005,0.01"),
        Messages,
        &[MEDIAN, EXP, ("load", "0.8")],
        RACKS,
    ),
    figure("lsq-equal", "LSQ: equal servers", SLOT_LOADS, Mean, &[("model", "slots")], LSQ),
    lsq!("lsq-2a", "LSQ Fig. 2a: 10 of 100 servers twice as fast", "90x1,10x2"),
    lsq!("lsq-2b", "LSQ Fig. 2b: 50 of 100 servers twice as fast", "50x1,50x2"),
    lsq!("lsq-2c", "LSQ Fig. 2c: 90 of 100 servers twice as fast", "10x1,90x2"),
    lsq!("lsq-3a", "LSQ Fig. 3a: 10 of 100 servers ten times as fast", "90x1,10x10"),
    lsq!("lsq-3b", "LSQ Fig. 3b: 50 of 100 servers ten times as fast", "50x1,50x10"),
    lsq!("lsq-3c", "LSQ Fig. 3c: 90 of 100 servers ten times as fast", "10x1,90x10"),
    figure(
        "rosella-stability",
        "Rosella: ten workers, one six times as fast, load 14/15",
        ("load", "0.5,0.7,0.9,0.9333"),
        Mean,
        &[("model", "ct"), ("servers", "10"), ("dispatchers", "1"), ("speeds", "1x6,9x1")],
        policies!["random" "jsq(2)" "ppot" "ppot-learned" "ppot-ewma"],
    ),
    figure(
        "all-delay-1-1",
        "All policies: equal servers, 10 dispatchers, load 0.9, by delay",
        ("delay", "0us,1us,5us,20us,100us"),
        P99,
        &[("model", "ct"), ("load", "0.9")],
        ALL_POLICIES,
    ),
    figure(
        "all-delay-1-10",
        "All policies: speeds 1:10, 10 dispatchers, load 0.9, by delay",
        ("delay", "0us,1us,5us,20us,100us"),
        P99,
        &[("model", "ct"), ("speeds", "50x1,50x10"), ("load", "0.9")],
        ALL_POLICIES,
    ),
    figure(
        "all-load-1-2",
        "All policies: speeds 1:2, 10 dispatchers, 5 us, by load",
        ("load", "0.5,0.7,0.8,0.9,0.95,0.99"),
        P99,
        &[("model", "ct"), ("speeds", "50x1,50x2"), ("delay", "5us")],
        ALL_POLICIES,
    ),
    figure(
        "all-dispatchers-1-1",
        "All policies: equal servers, 5 us, load 0.9, by dispatchers",
        ("dispatchers", "1,2,4,8,16,32"),
        P99,
        &[("model", "ct"), ("delay", "5us"), ("load", "0.9")],
        ALL_POLICIES,
    ),
];
