from ipaddress import ip_address

import pytest

from mindserve.contract.request import PartKind
from mindserve.errors import InvalidRequest
from mindserve.media.policy import AddressPolicy, is_public

POLICY = AddressPolicy.parse(" Upload.example.org, 127.0.0.1 ,[2001:db8::7],10.0.0.5,bücher.example,,2130706433, 127.1")
NOT_LISTED = "is not in allowed domain list"


def refusal(url: str, policy: AddressPolicy = POLICY, kind: PartKind = PartKind.IMAGE_URL) -> str:
    with pytest.raises(InvalidRequest) as caught:
        policy.check_url(url, kind)
    assert caught.value.param == "messages"
    return caught.value.message


@pytest.mark.parametrize(
    ("url", "host", "port", "path", "authority"),
    [
        ("http://upload.example.org/x.png", "upload.example.org", 80, "/x.png", "upload.example.org"),
        ("https://UPLOAD.example.ORG/a/x.JPG?q=1&r=.gif", "upload.example.org", 443, "/a/x.JPG?q=1&r=.gif", None),
        ("http://upload.example.org:8080", "upload.example.org", 8080, "/", "upload.example.org:8080"),
        ("http://127.0.0.1:9/x.png#part", "127.0.0.1", 9, "/x.png", "127.0.0.1:9"),
        ("https://[2001:db8::7]/x", "2001:db8::7", 443, "/x", "[2001:db8::7]"),
        ("http://BÜCHER.example/x", "xn--bcher-kva.example", 80, "/x", "xn--bcher-kva.example"),
        ("http://[::ffff:127.0.0.1]/x", "::ffff:127.0.0.1", 80, "/x", None),
    ],
)
def test_listed(url: str, host: str, port: int, path: str, authority: str | None) -> None:
    target = POLICY.check_url(url, PartKind.IMAGE_URL)
    assert (target.host, target.port, target.path) == (host, port, path)
    assert target.is_tls == url.startswith("https")
    assert authority is None or target.authority == authority


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "a.upload.example.org",
        "upload.example.org.evil.example",
        "upload.example.org.",
        "example.org",
        "upload.example.org@evil.example",
        "upload.example.org:80@evil.example",
        "127.0.0.2",
        "10.0.0.6",
        "[::1]",
        "[::ffff:10.0.0.6]",
        "[fe80::1%25eth0]",
        "2130706433",
        "127.1",
        "0x7f000001",
        "0x7f.0.0.1",
        "0177.0.0.1",
        "127.000.000.001",
        "169.254.169.254",
        "metadata.google.internal",
        "localhost",
        "１２７.0.0.2",
    ],
)
def test_unlisted_hosts(host: str) -> None:
    """Numeric spellings are refused even where the operator lists them."""
    assert NOT_LISTED in refusal(f"http://{host}/x.png")


def test_text_names_the_domain() -> None:
    expected = "The media URL domain is not allowed: Domain 'evil.example' is not in allowed domain list"
    assert refusal("http://evil.example/x.png") == expected


@pytest.mark.parametrize("allowed", ["", " ", ",", ", ,"])
def test_empty_list_allows_nothing(allowed: str) -> None:
    assert NOT_LISTED in refusal("http://127.0.0.1/x.png", AddressPolicy.parse(allowed))
    assert NOT_LISTED in refusal("http://upload.example.org/x.png", AddressPolicy.parse(allowed))


@pytest.mark.parametrize(
    "url",
    [
        "http:///x.png",
        "http://",
        "http://[::1/x.png",
        "http://upload.example.org:0/x.png",
        "http://upload.example.org:99999/x.png",
        "http://upload.example.org:8o/x.png",
        "http://evil.example\\@upload.example.org/x.png",
        "http://upload.example.org/x y.png",
        "http://upload.example.org/x\r\nHost: evil.example",
        "http://upload.example.org\t/x.png",
        "file://upload.example.org/x.png",
        "ftp://upload.example.org/x.png",
        "//upload.example.org/x.png",
    ],
)
def test_malformed(url: str) -> None:
    assert refusal(url) == "The media URL is malformed"


def test_credentials_are_refused() -> None:
    assert refusal("http://user:word@upload.example.org/x.png") == "The media URL must not contain user information"
    assert refusal("http://@upload.example.org/x.png") == "The media URL must not contain user information"


def test_extension_of_the_path_counts() -> None:
    assert "must end with one of ['mp4', 'avi', 'wmv']" in refusal(
        "http://upload.example.org/x.png", kind=PartKind.VIDEO_URL
    )
    assert "must end with one of" in refusal("http://upload.example.org/x.php?name=x.png")
    POLICY.check_url("http://upload.example.org/v1.2/picture?name=x.gif", PartKind.IMAGE_URL)


@pytest.mark.parametrize(
    "text",
    [
        "127.0.0.1",
        "127.255.255.254",
        "0.0.0.0",
        "0.1.2.3",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "100.64.0.1",
        "100.100.100.200",
        "169.254.169.254",
        "168.63.129.16",
        "192.0.0.192",
        "198.18.0.1",
        "203.0.113.1",
        "224.0.0.1",
        "239.1.1.1",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::127.0.0.1",
        "fe80::1",
        "fc00::1",
        "fd00:ec2::254",
        "fec0::1",
        "ff02::1",
        "2001:db8::1",
        "2001::1",
        "2002:7f00:1::",
        "64:ff9b::7f00:1",
        "64:ff9b:1::1",
    ],
)
def test_addresses_that_are_not_public(text: str) -> None:
    assert not is_public(ip_address(text))
    with pytest.raises(InvalidRequest, match="resolves to an address that is not public"):
        AddressPolicy.parse("a.example").check_addresses("a.example", [text])


@pytest.mark.parametrize("text", ["8.8.8.8", "1.1.1.1", "93.184.216.34", "2606:4700:4700::1111", "2a00:1450::1"])
def test_public_addresses(text: str) -> None:
    assert is_public(ip_address(text))
    assert AddressPolicy.parse("a.example").check_addresses("a.example", [text]) == [ip_address(text)]


def test_a_listed_name_does_not_list_its_address() -> None:
    with pytest.raises(InvalidRequest, match="not public"):
        AddressPolicy.parse("internal.example").check_addresses("internal.example", ["10.0.0.5"])
    policy = AddressPolicy.parse("internal.example,10.0.0.5")
    assert policy.check_addresses("internal.example", ["10.0.0.5"]) == [ip_address("10.0.0.5")]


@pytest.mark.parametrize("private", ["10.0.0.6", "::1", "::ffff:192.168.0.1", "fe80::1%eth0", "nonsense"])
def test_one_bad_answer_spoils_all(private: str) -> None:
    with pytest.raises(InvalidRequest, match="not public"):
        POLICY.check_addresses("upload.example.org", ["8.8.8.8", private])


def test_mapped_addresses_count_as_what_they_map() -> None:
    assert POLICY.check_addresses("upload.example.org", ["::ffff:127.0.0.1"]) == [ip_address("127.0.0.1")]


def test_no_answer() -> None:
    with pytest.raises(InvalidRequest, match="can not be resolved"):
        POLICY.check_addresses("upload.example.org", [])


def test_long_hosts_are_cut_in_the_message() -> None:
    message = refusal(f"http://{'a' * 1000}.example/x.png")
    assert len(message) < 300
