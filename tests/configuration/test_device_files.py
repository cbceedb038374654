"""Device files as people write them, right and wrong."""

from __future__ import annotations

import pytest

from fedplt.configuration.device_files import read_fleet
from fedplt.errors import FleetError
from fedplt.fleet import DeviceProfile

PHONE = DeviceProfile("phone", 80e9, 120e6, 40e6, latency_seconds=0.2, memory_bytes=2e9)


def csv(tmp_path, text):
    path = tmp_path / "fleet.csv"
    path.write_text(text)
    return read_fleet(path)


def toml(tmp_path, text):
    path = tmp_path / "fleet.toml"
    path.write_text(text)
    return read_fleet(path)


@pytest.mark.parametrize(
    "text",
    [
        "name,gflops,mbps_down,mbps_up,latency_ms,memory_gb\nphone,80,120,40,200,2\n",
        "name;gflops;down;up;latency;memory\n# a comment\nphone;80;120 Mbit/s;5 MB/s;0.2 s;2 GB\n",
        "name,speed,down_mbps,up,latency_s,memory_mb\n\nphone,80 GFLOP/s,120,40Mbps,0.2,2000\n",
        "name,gflops,MBps_down,up_MBps,latency_ms,memory\nphone,80,15,5,200,2e9 B\n",
        "name,gflops,Mbps_down,up,latency,memory\nphone,80,120,5 MBps,200 ms,2 GB\n",
        "# tabs\nname\tgflops\tmbps_down\tmbps_up\tlatency_ms\tmemory_gb\n"
        "phone\t80\t120\t40\t200\t2",
        "\ufeffname, tflops, kbps_down, gbps_up, latency_seconds, memory_bytes\n"
        '"phone", 0.08, 120_000, 0.04, 2e-1, 2e9\n',
    ],
)
def test_csv(tmp_path, text):
    (found,) = csv(tmp_path, text).devices
    assert found == PHONE


def test_toml(tmp_path):
    file = toml(
        tmp_path,
        """[work]
local_steps = 5
[[device]]
name = "phone"
gflops = 80
down = "120 Mbit/s"
bps_up = 4e7
latency = "200 ms"
memory = "2 GB"
[[device]]
name = "other"
count = 7
speed = "1 GFLOPS"
down = "1 Gb/s"
up = "100 kB/s"
""",
    )
    assert file.devices[0] == PHONE
    assert file.devices[1] == DeviceProfile("other", 1e9, 1e9, 8e5, count=7)
    assert file.work.local_steps == 5


HEADER = "name,gflops,mbps_down,mbps_up\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "is empty"),
        (HEADER, "has no devices"),
        ("name,gflops,mbps_down\nphone,1,2\n", "line 1: the upload bandwidth"),
        ("gflops,mbps_down,mbps_up\n1,2,3\n", "column 'name' is missing"),
        (HEADER + "phone,80,120\n", "line 2: 3 values for 4 columns"),
        (HEADER + "phone,fast,120,40\n", "line 2, device 'phone', column gflops: 'fast'"),
        (HEADER + "phone,80,0,40\n", "column mbps_down: .*0 bit/s"),
        (HEADER + "phone,-80,120,40\n", "column gflops: .*-8e\\+10 FLOP/s"),
        (HEADER + "phone,80,120,nan\n", "column mbps_up: .*nan"),
        (HEADER + "phone,80,,40\n", "line 2, device 'phone': .*download bandwidth"),
        (HEADER + "phone,80,1,2\nphone,8,1,2\n", r"line 3: the name 'phone' is taken .*line 2\)"),
        (HEADER + ",80,1,2\n", "line 2, column name"),
        (HEADER + "phone,1e9,120,40\n", "column gflops: .*1e\\+18"),
        (HEADER + 'phone,"1,5",120,40\n', "Decimals take a point"),
        ("name,gflops,bps_down,mbps_up\nphone,80,20,40\n", "column bps_down: .*20 bit/s"),
        ("name,speed,down,up\nphone,80,1 Mbit/s,1 Mbit/s\n", "column speed: '80'"),
        ("name,speed,down,up\nphone,80 GHz,1 Mbit/s,1 Mbit/s\n", "column speed: .*'GHz'"),
        ("name,gflops,mbps_dwon,mbps_up\nphone,1,2,3\n", "'mbps_dwon'.*'mbps_down'"),
        ("name,gflops,MBps_dwon,mbps_up\nphone,1,2,3\n", "in megabits .* in megabytes"),
        # A unit that is not known is never corrected to another one.
        ("name,gflops,MBPS_DOWN,mbps_up\n", "'MBPS_DOWN'.*mbps_down .megabits"),
        ("name,gflops,mB_down,mbps_up\n", r"MBps_down \(megabytes"),
        ("name,gflops,mbps_down,upload_mb\n", r"MBps_up \(megabytes"),
        (HEADER[:-1] + ",memory_Mb\n", r"memory_mb \(1e6 bytes\)"),
        (HEADER[:-1] + ",latency_h\n", "latency_ms, latency_s, or latency with units"),
        ("name,pflops,mbps_down,mbps_up\n", "'pflops'"),
        ("name,gflops,mbps_down,mbps_up,colour\nphone,1,2,3,4\n", "'colour'. Known"),
        ("name,gflops,speed,mbps_down,mbps_up\n", "gflops and speed"),
        ("name,name,speed,mbps_down,mbps_up\n", "columns? 'name'"),
        ("name,count,gflops,mbps_down,mbps_up\nphone,2.5,1,2,3\n", "column count: '2.5'"),
        ("name,count,gflops,mbps_down,mbps_up\nphone,99999999,1,2,3\n", "from 1 to 1,000,000"),
    ],
)
def test_wrong_csv_is_refused(tmp_path, text, expected):
    with pytest.raises(FleetError, match=expected) as caught:
        csv(tmp_path, text)
    assert str(tmp_path / "fleet.csv") in str(caught.value)


DEVICE = '[[device]]\nname = "phone"\nspeed = "1 GFLOP/s"\ndown = "1 Mbit/s"\n'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", r"no devices: add a \[\[device\]\] table"),
        ("[device]\nname = 'x'\n", "two brackets"),
        ("name = [\n", "not valid TOML"),
        ("[fleet]\n", "fleet: there is no such key"),
        ("work = 3\n" + DEVICE + 'up = "1 Mbit/s"\n', r"write \[work\]"),
        (DEVICE, "fleet.toml, line 1: the upload bandwidth"),
        ("\n" + DEVICE + "up = 20\n", "line 2, device 'phone', column up: '20'"),
        (DEVICE + "up = true\n", "column up: True"),
        (DEVICE + 'up = "20 bit/s"\n', "column up: .*20 bit/s"),
        (DEVICE + 'up = "very fast"\n', "column up: .*very fast"),
        (DEVICE + 'up = "1 Mbit/s"\nlatency = "2 days"\n', "column latency: .*'days'"),
        (DEVICE + "mbps_up = 1\nlatency_seconds = -1\n", "column latency_seconds: .*-1"),
    ],
)
def test_wrong_toml_is_refused(tmp_path, text, expected):
    with pytest.raises(FleetError, match=expected):
        toml(tmp_path, text)


def test_other_files(tmp_path):
    with pytest.raises(FleetError, match=r"none\.csv"):
        read_fleet(tmp_path / "none.csv")
    (tmp_path / "fleet.json").write_text("{}")
    with pytest.raises(FleetError, match=r"fleet\.json.*\.toml.*\.csv"):
        read_fleet(tmp_path / "fleet.json")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(FleetError, match=r"binary\.csv"):
        read_fleet(tmp_path / "binary.csv")


def test_profiles_made_in_python_are_checked_too():
    with pytest.raises(FleetError, match="device 'x': up_bits_per_second"):
        DeviceProfile("x", 1e9, 1e6, 0.0)
    with pytest.raises(FleetError, match="count"):
        DeviceProfile("x", 1e9, 1e6, 1e6, count=0)
